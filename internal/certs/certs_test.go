package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/internal/certs"
	"github.com/atmostonce/coordinator/internal/certs/certstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, files certs.Files, log io.Writer) *certs.Keeper {
	t.Helper()
	keeper, err := certs.Open(files, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return keeper
}

func TestWhatIsWrongWithAFileIsNamed(t *testing.T) {
	dir := t.TempDir()
	authority := certstest.New(t, "one")
	good := authority.Write(t, dir)
	other := authority.Write(t, filepath.Join(dir, "other"))
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		certstest.Put(t, path, []byte(text))
		return path
	}
	words := put("words.pem", "hello\n")
	broken := put("broken.pem", "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n")
	large := put("large.pem", strings.Repeat("\n", certs.FileBytesMax+1))
	absent := filepath.Join(dir, "absent.pem")
	secret := "-----BEGIN PRIVATE KEY-----\nSECRET\n"
	encrypted := put("encrypted.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\naGVsbG8=\n-----END ENCRYPTED PRIVATE KEY-----\n")
	whole := string(authority.PEM())
	cutOff := put("cut.pem", whole+whole[:200])
	damaged := put("damaged.pem", whole+"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n")
	pipe := filepath.Join(dir, "pipe.pem")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		change func(*certs.Files)
		part   certs.Part
		want   string
	}{
		"no certificate":                 {func(f *certs.Files) { f.Certificate = absent }, certs.Certificate, absent + " cannot be read: no such file or directory"},
		"a directory":                    {func(f *certs.Files) { f.Certificate = dir }, certs.Certificate, "is a directory"},
		"no key":                         {func(f *certs.Files) { f.Key = absent }, certs.Key, absent + " cannot be read"},
		"no authorities":                 {func(f *certs.Files) { f.Authorities = absent }, certs.Authorities, absent + " cannot be read"},
		"words for a certificate":        {func(f *certs.Files) { f.Certificate = words }, certs.Certificate, words + " holds no certificate in PEM"},
		"words for a key":                {func(f *certs.Files) { f.Key = words }, certs.Key, words + " holds no private key in PEM"},
		"words for authorities":          {func(f *certs.Files) { f.Authorities = words }, certs.Authorities, words + " holds no certificate in PEM"},
		"a key for a certificate":        {func(f *certs.Files) { f.Certificate = f.Key }, certs.Certificate, "holds no certificate in PEM"},
		"a certificate for a key":        {func(f *certs.Files) { f.Key = f.Certificate }, certs.Key, "holds no private key in PEM"},
		"another's key":                  {func(f *certs.Files) { f.Key = other.Key }, certs.Key, other.Key + " is not the key of " + good.Certificate},
		"a broken certificate":           {func(f *certs.Files) { f.Certificate = broken }, certs.Certificate, broken + " holds a certificate that cannot be read: "},
		"a name that is a secret":        {func(f *certs.Files) { f.Key = secret }, certs.Key, "holds PEM text, and takes the name of a file"},
		"an encrypted key":               {func(f *certs.Files) { f.Key = encrypted }, certs.Key, encrypted + " is encrypted: the key has to be there without a passphrase"},
		"authorities cut off":            {func(f *certs.Files) { f.Authorities = cutOff }, certs.Authorities, cutOff + " holds 2 blocks of PEM, of which 1 can be read"},
		"a damaged second authority":     {func(f *certs.Files) { f.Authorities = damaged }, certs.Authorities, damaged + " holds a certificate that cannot be read: "},
		"a chain that is cut off":        {func(f *certs.Files) { f.Certificate = cutOff }, certs.Certificate, cutOff + " holds 2 blocks of PEM, of which 1 can be read"},
		"a file that one would wait for": {func(f *certs.Files) { f.Authorities = pipe }, certs.Authorities, pipe + " cannot be read: it is no regular file"},
		"too large a file":               {func(f *certs.Files) { f.Authorities = large }, certs.Authorities, "it is larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			files := good
			test.change(&files)
			_, err := certs.Open(files, slog.New(slog.DiscardHandler))
			var wrong *certs.FileError
			if !errors.As(err, &wrong) || wrong.Part != test.part || !strings.Contains(err.Error(), test.want) || strings.Contains(wrong.OfSetting(), "SECRET") {
				t.Errorf("got %v, want part %d and %q", err, test.part, test.want)
			}
		})
	}
}

// exchange says something over a connection, and hears it again.
func exchange(t *testing.T, server, client *certs.Keeper) error {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	secured := server.Listener(raw)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := secured.Accept()
		if err != nil {
			return
		}
		_, _ = io.CopyN(conn, conn, 5)
		_ = conn.Close()
	}()
	defer func() { _ = raw.Close(); <-done }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := client.Dialer(func(ctx context.Context, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	})(ctx, raw.Addr().String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	heard := make([]byte, 5)
	if _, err := io.ReadFull(conn, heard); err != nil {
		return err
	}
	if string(heard) != "hello" {
		t.Errorf("heard %q", heard)
	}
	return nil
}

// Both ends show what an authority has signed that the other one believes, or nothing is said.
func TestBothEndsAreAsked(t *testing.T) {
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	dir := t.TempDir()
	good := ours.Write(t, filepath.Join(dir, "good"))
	stranger := theirs.Write(t, filepath.Join(dir, "stranger"))
	over := ours.Write(t, filepath.Join(dir, "over"))
	elsewhere := ours.Write(t, filepath.Join(dir, "elsewhere"))
	put := func(files certs.Files, notAfter time.Time, host string) {
		certificate, key := ours.Sign(t, notAfter, host)
		certstest.Put(t, files.Certificate, certificate)
		certstest.Put(t, files.Key, key)
	}
	put(over, time.Now().Add(-time.Hour), "127.0.0.1")
	put(elsewhere, time.Now().Add(time.Hour), "n1.example.com")

	for name, test := range map[string]struct {
		server, client certs.Files
		want           string // "": they talk
	}{
		"both as they should be":         {good, good, ""},
		"nobody is asked":                {certs.Files{Certificate: good.Certificate, Key: good.Key}, certs.Files{Authorities: good.Authorities}, ""},
		"a client without one":           {good, certs.Files{Authorities: good.Authorities}, "certificate required"},
		"a client of another authority":  {good, certs.Files{Certificate: stranger.Certificate, Key: stranger.Key, Authorities: good.Authorities}, "unknown certificate authority"},
		"a client whose own is over":     {good, over, "certificate"},
		"a server of another authority":  {stranger, good, "signed by unknown authority"},
		"a server whose own is over":     {over, good, "certificate has expired"},
		"a server of another host":       {elsewhere, good, "127.0.0.1"},
		"a client of the system's roots": {good, certs.Files{Certificate: good.Certificate, Key: good.Key}, "signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			err := exchange(t, open(t, test.server, io.Discard), open(t, test.client, io.Discard))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// A server that has nothing to show, and plain text, end a handshake and nothing else.
func TestNothingIsSaidInPlainText(t *testing.T) {
	files := certstest.New(t, "ours").Write(t, t.TempDir())
	if err := exchange(t, open(t, certs.Files{Authorities: files.Authorities}, io.Discard), open(t, files, io.Discard)); err == nil {
		t.Error("a server without a certificate was talked to")
	}
	near, far := net.Pipe()
	server := tls.Server(far, open(t, files, io.Discard).Server())
	done := make(chan error, 1)
	go func() { done <- server.Handshake(); _ = far.Close() }()
	_, _ = near.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	_, _ = io.Copy(io.Discard, near)
	if err := <-done; err == nil {
		t.Error("plain text was taken")
	}
	_ = near.Close()
}

// Nobody speaks anything older than TLS 1.3.
func TestOldVersions(t *testing.T) {
	files := certstest.New(t, "ours").Write(t, t.TempDir())
	keeper := open(t, files, io.Discard)
	near, far := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- tls.Server(far, keeper.ServerForAll()).Handshake(); _ = far.Close() }()
	client := keeper.Client("127.0.0.1")
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if err := tls.Client(near, client).Handshake(); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("got %v", err)
	}
	_ = near.Close()
	if err := <-done; err == nil {
		t.Error("TLS 1.2 was spoken")
	}
}

// watched opens files and looks at them until the test ends. after is what the log was told within
// a time.
func watched(t *testing.T, files certs.Files) (keeper *certs.Keeper, after func(time.Duration) string) {
	t.Helper()
	log := &certs.Told{}
	keeper = open(t, files, log)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); keeper.Watch(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return keeper, func(within time.Duration) string {
		time.Sleep(within)
		synctest.Wait()
		return log.Take()
	}
}

// What is renewed is used from the next look on, and what does not belong together never is.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, next := certstest.New(t, "one"), certstest.New(t, "two")
		files := authority.Write(t, t.TempDir())
		keeper, after := watched(t, files)
		first := keeper.NotAfter()
		look := func() string { return after(certs.LookEvery) }
		if told := after(2*time.Second) + look(); told != "" {
			t.Errorf("nothing has changed: %s", told)
		}
		certificate, key := next.Sign(t, first.Add(time.Hour), "127.0.0.1")
		certstest.Put(t, files.Certificate, certificate)
		if told := look(); !strings.Contains(told, "level=ERROR") || !strings.Contains(told, "is not the key of") || keeper.NotAfter() != first {
			t.Errorf("half renewed: %s, %v", told, keeper.NotAfter())
		}
		if told := look(); told != "" {
			t.Errorf("told twice: %s", told)
		}
		certstest.Put(t, files.Key, key)
		if told := look(); !strings.Contains(told, "were read again") || keeper.NotAfter().Equal(first) {
			t.Errorf("renewed: %s, %v", told, keeper.NotAfter())
		}
		over, itsKey := next.Sign(t, time.Now().Add(-time.Minute), "127.0.0.1")
		certstest.Put(t, files.Certificate, over)
		certstest.Put(t, files.Key, itsKey)
		if told := look(); !strings.Contains(told, "level=ERROR") || !strings.Contains(told, "was valid until ") || keeper.NotAfter().Before(first) {
			t.Errorf("renewed by one that is over: %s, %v", told, keeper.NotAfter())
		}
		certstest.Put(t, files.Certificate, certificate)
		certstest.Put(t, files.Key, key)
		certstest.Put(t, files.Authorities, []byte("nothing"))
		if told := look(); !strings.Contains(told, "holds no certificate") {
			t.Errorf("lost authorities: %s", told)
		}
		certstest.Put(t, files.Authorities, next.PEM())
		if told := look(); !strings.Contains(told, "were read again") {
			t.Errorf("authorities: %s", told)
		}
		if err := exchange(t, keeper, keeper); err != nil {
			t.Errorf("after the renewal: %v", err)
		}
	})
}

// A look that comes while the files are being written takes up nothing of what is there just then,
// though all of it can be read: a part of the authorities, or the one file of a renewal that needs two.
func TestALookIntoAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := certstest.New(t, "one"), certstest.New(t, "two")
		files := one.Write(t, t.TempDir())
		both := append(one.PEM(), two.PEM()...)
		certstest.Put(t, files.Authorities, both)
		keeper, after := watched(t, files)
		// write does the first just before a look, and the second just after it.
		write := func(first, second func()) string {
			told := after(certs.LookEvery - 200*time.Millisecond)
			first()
			told += after(400 * time.Millisecond)
			second()
			return told + after(certs.LookEvery-200*time.Millisecond)
		}
		if told := write(
			func() { certstest.Put(t, files.Authorities, one.PEM()) },
			func() { certstest.Put(t, files.Authorities, both) },
		); told != "" {
			t.Errorf("authorities that are written in two parts: %s", told)
		}
		certificate, key := two.Sign(t, keeper.NotAfter().Add(time.Hour), "127.0.0.1")
		if told := write(
			func() { certstest.Put(t, files.Certificate, certificate) },
			func() { certstest.Put(t, files.Key, key) },
		) + after(2*time.Second); strings.Contains(told, "level=ERROR") || !strings.Contains(told, "were read again") {
			t.Errorf("a certificate, and its key a moment later: %s", told)
		}
	})
}

// A certificate that is over, at the start, by a renewal or because nobody has renewed it, is told,
// once each.
func TestACertificateThatIsOver(t *testing.T) {
	const over = "nobody believes the certificate that is shown"
	synctest.Test(t, func(t *testing.T) {
		authority := certstest.New(t, "ours")
		files := authority.Write(t, t.TempDir())
		put := func(left time.Duration) {
			certificate, key := authority.Sign(t, time.Now().Add(left), "127.0.0.1")
			certstest.Put(t, files.Certificate, certificate)
			certstest.Put(t, files.Key, key)
		}
		put(-time.Minute)
		_, after := watched(t, files)
		for _, step := range []struct {
			name   string
			change func()
			told   int
		}{
			{"at the start", func() {}, 1},
			{"still", func() {}, 0},
			{"renewed by another that is over", func() { put(-time.Second) }, 1},
			{"renewed", func() { put(150 * time.Second) }, 0},
			{"a minute later", func() {}, 0},
			{"not renewed", func() {}, 1},
			{"still not", func() {}, 0},
		} {
			step.change()
			if told := after(time.Minute); strings.Count(told, over) != step.told || step.told > 0 && !strings.Contains(told, "level=ERROR") {
				t.Errorf("%s: %s", step.name, told)
			}
		}
	})
}

// An end that is one of several alike is told why the others would not believe it, before any of
// them has tried: at its start, and when what it shows is renewed.
func TestWhatOthersDoNotBelieve(t *testing.T) {
	const host = "n1.example.com"
	dialed, dialing := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	for name, test := range map[string]struct {
		stranger bool
		uses     []x509.ExtKeyUsage
		host     string
		want     string // "": nothing
	}{
		"as it should be":      {false, []x509.ExtKeyUsage{dialing, dialed}, host, ""},
		"of another authority": {true, []x509.ExtKeyUsage{dialing, dialed}, host, "is not believed of the end that is dialed: certificate signed by unknown authority"},
		"of another host":      {false, []x509.ExtKeyUsage{dialing, dialed}, "n2.example.com", "certificate is valid for n2.example.com, not n1.example.com"},
		"for servers only":     {false, []x509.ExtKeyUsage{dialed}, host, "is not believed of the end that is dialing: certificate specifies an incompatible key usage"},
		"for clients only":     {false, []x509.ExtKeyUsage{dialing}, host, "is not believed of the end that is dialed: certificate specifies an incompatible key usage"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
				files := ours.Write(t, t.TempDir())
				put := func(from *certstest.Authority, uses []x509.ExtKeyUsage, host string) {
					certificate, key := from.SignFor(t, uses, time.Now().Add(time.Hour), host)
					certstest.Put(t, files.Certificate, certificate)
					certstest.Put(t, files.Key, key)
				}
				put(ours, []x509.ExtKeyUsage{dialing, dialed}, host)
				log := &strings.Builder{}
				keeper := open(t, files, log)
				keeper.Among(host)
				if log.Len() > 0 {
					t.Errorf("before: %s", log)
				}
				signer := ours
				if test.stranger {
					signer = theirs
				}
				put(signer, test.uses, test.host)
				check := func(when string) {
					t.Helper()
					told := strings.Count(log.String(), "level=WARN")
					if test.want == "" && told != 0 || test.want != "" && told != 1 || !strings.Contains(log.String(), test.want) {
						t.Errorf("%s: %s", when, log)
					}
					log.Reset()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 3*certs.LookEvery)
				defer cancel()
				keeper.Watch(ctx)
				check("renewed")
				open(t, files, log).Among(host)
				check("at the start")
			})
		})
	}
}
