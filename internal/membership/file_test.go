package membership

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/peer"
)

func TestFileIsKept(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(dir, "n1", 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir, "n1", 0, 6)
	if err != nil {
		t.Fatal(err)
	}
	a, b := first.State(), again.State()
	if a.ID() != b.ID() || b.Shards != 3 {
		t.Errorf("got %+v, then %+v", a, b)
	}
	other, err := Open(t.TempDir(), "n1", 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if o := other.State(); o.Incarnation == a.Incarnation {
		t.Error("two directories, one incarnation")
	}
}

// Invariant 6.
func TestStartsAreCounted(t *testing.T) {
	dir := t.TempDir()
	for want := uint64(1); want < 4; want++ {
		f, err := Open(dir, "n1", 0, 3)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := f.CountStart(); err != nil || got != want {
			t.Errorf("start %d: got %d, %v", want, got, err)
		}
	}
	// A file from before starts were counted.
	path := filepath.Join(dir, FileName)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before := strings.Replace(unsigned(string(content)), ",\n  \"starts\": 3", "", 1)
	if before == unsigned(string(content)) {
		t.Fatalf("no starts in %s", content)
	}
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir, "n1", 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := f.CountStart(); err != nil || got != 1 {
		t.Errorf("got %d, %v", got, err)
	}
}

// unsigned is a file as it was before there was a checksum in it.
func unsigned(content string) string {
	return regexp.MustCompile(`,\n  "checksum": "[0-9a-f]{8}"`).ReplaceAllString(content, "")
}

// A bit that flips does not go unnoticed, wherever it is, unless the content is the same.
func TestFlippedBitInTheFile(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(dir, "n1", 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	self := peer.Member{Name: "n1", Incarnation: f.State().Incarnation, PeerAddress: "10.0.0.1:7430", ClientAddress: "10.0.0.1:7420"}
	if err := f.update(func(s *State) { s.ClusterID, s.Members, s.Starts = "c0ffee", []peer.Member{self}, 77 }); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, FileName)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, refused := f.State(), 0
	for bit := range 8 * len(content) {
		flipped := bytes.Clone(content)
		flipped[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		switch got, err := Open(dir, "n1", 3, 3); {
		case err != nil:
			refused++
		case !reflect.DeepEqual(got.State(), want):
			t.Fatalf("byte %d: took %s for %+v", bit/8, flipped, got.State())
		}
	}
	if refused < 7*len(content) {
		t.Errorf("%d of %d were refused", refused, 8*len(content))
	}
}

// Invariant 7.
func TestSupersededDirectoryIsNotUsedAgain(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(dir, "n1", 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Supersede("start 7 of it was met"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "n1", 0, 3); err == nil || !strings.Contains(err.Error(), "start 7 of it was met") ||
		!strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "coordctl members replace n1") {
		t.Errorf("got %v", err)
	}
}

// Before there is a cluster a wrong number can still be put right.
func TestShardsCanChangeBeforeThereIsACluster(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, "n1", 4, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "n1", 6, 3); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir, "n1", 0, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.State().Shards; got != 6 {
		t.Errorf("%d shards", got)
	}
}

// Invariant 5.
func TestFileOfSomethingElse(t *testing.T) {
	write := func(name, content string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := func(old, new string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if _, err := Open(dir, "n1", 3, 3); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, FileName)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(unsigned(string(content)), old, new, 1)
			if changed == unsigned(string(content)) {
				t.Fatalf("%q is not in %s", old, content)
			}
			write(FileName, changed)(t, dir)
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string)
		want    string
	}{
		"shards without node.json": {func(t *testing.T, dir string) {
			if err := os.MkdirAll(filepath.Join(dir, "shards", "0000"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "is missing: " + disk.Advice},
		"foreign file":      {write("PG_VERSION", "18"), "holds %/PG_VERSION and no node.json"},
		"empty node.json":   {write(FileName, ""), "%/node.json is damaged, or of another program: it is empty"},
		"garbage":           {write(FileName, "\x00\x01\x02"), "it is no JSON from byte 1 on"},
		"another program's": {write(FileName, `{"name":"x"}`), `it holds what this program does not know (unknown field "name")`},
		"a list":            {write(FileName, "[]"), "it is JSON of something else"},
		"another type":      {write(FileName, `{"format":"x"}`), `it holds in "format" what cannot be there`},
		"cut":               {change("\n}\n", ""), "it ends early, after "},
		"two":               {change("\n}\n", "\n}\n{}"), "it does not end where it should"},
		"one and an end":    {change("\n}\n", "\n}\n}"), "it does not end where it should"},
		"one and no JSON":   {change("\n}\n", "\n}\n\x00"), "it does not end where it should"},
		"too long":          {write(FileName, strings.Repeat(" ", fileBytesMax+1)), "%/node.json is damaged"},
		"another format":    {change(`"format": 1`, `"format": 2`), "is of format 2"},
		"no incarnation":    {change(`"incarnation": "`, `"incarnation": "x`), "is not 32 hexadecimal digits"},
		"no cluster's id": {change(`"shards": 3`, `"shards": 3, "cluster_id": "c\u00e9"`),
			"%/node.json is damaged, or of another program: it says what cannot be: cluster id"},
		"half a cluster": {change(`"shards": 3`, `"shards": 3, "cluster_id": "c"`), "does not count this node"},
		"no cluster":     {change(`"shards": 3`, `"shards": 3, "shards_created": true`), "names no cluster"},
		"another node":   {change(`"node_id": "n1"`, `"node_id": "n2"`), `belongs to node "n2", and this node is "n1"`},
		"other shards": {func(t *testing.T, dir string) {
			f, err := Open(dir, "n1", 6, 3)
			if err != nil {
				t.Fatal(err)
			}
			self := peer.Member{Name: "n1", Incarnation: f.State().Incarnation}
			if err := f.update(func(s *State) { s.ClusterID, s.Members = "c", []peer.Member{self} }); err != nil {
				t.Fatal(err)
			}
		}, "was made for 6 shards, and 3 were asked for"},
		"a directory": {func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, FileName), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "%/node.json is not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.prepare(t, dir)
			_, err := Open(dir, "n1", 3, 3)
			if want := strings.ReplaceAll(c.want, "%", dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want …%s…", err, want)
			}
			if err != nil && !strings.Contains(err.Error(), dir) {
				t.Errorf("%v names no file", err)
			}
		})
	}
}

func TestFileAfterACrashWhileItWasMade(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{FileName + temporary, LockName, ".hidden"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"for`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, "n1", 3, 3); err != nil {
		t.Error(err)
	}
}

func TestFailedWriteChangesNothing(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(dir, "n1", 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, FileName+temporary), 0o700); err != nil {
		t.Fatal(err)
	}
	self := peer.Member{Name: "n1", Incarnation: f.State().Incarnation}
	if err := f.update(func(s *State) { s.ClusterID, s.Members = "c", []peer.Member{self} }); err == nil {
		t.Fatal("wrote over a directory")
	}
	if got := f.State(); got.ClusterID != "" {
		t.Errorf("got %+v", got)
	}
}

func TestListOfPeersMustFit(t *testing.T) {
	dir := t.TempDir()
	f, err := Open(dir, "n1", 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	self := peer.Member{Name: "n1", Incarnation: f.State().Incarnation}
	if err := f.update(func(s *State) { s.ClusterID, s.Members = "c", []peer.Member{self} }); err != nil {
		t.Fatal(err)
	}
	if err := f.CheckPeers(listed()); err == nil || !strings.Contains(err.Error(), "the peers are n1, n2, n3, but "+dir) {
		t.Errorf("got %v", err)
	}
	for _, fits := range [][]peer.Listed{listed()[:1], nil} {
		if err := f.CheckPeers(fits); err != nil {
			t.Error(err)
		}
	}
}

// Invariant 8.
func TestDirectoryThatIsTakenAway(t *testing.T) {
	for name, take := range map[string]func(dir string) error{
		"deleted": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+"-elsewhere") },
		"replaced by its copy": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+"-elsewhere"), os.CopyFS(dir, os.DirFS(dir+"-elsewhere")))
		},
		"replaced by a file": func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			lock, err := Acquire(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Release()
			f, err := Open(dir, "n1", 0, 3)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.CountStart(); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.Check(), lock.Check()); err != nil {
				t.Fatal(err)
			}
			if err := take(dir); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(filepath.Join(dir, FileName))
			for what, err := range map[string]error{"node.json": f.Check(), "LOCK": lock.Check(), "write": f.Supersede("x")} {
				if !errors.Is(err, disk.ErrGone) || !strings.Contains(err.Error(), dir) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if after, _ := os.ReadFile(filepath.Join(dir, FileName)); !bytes.Equal(before, after) {
				t.Errorf("wrote into what is there now: %s", after)
			}
		})
	}
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	lock, err := Acquire(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
	lock, err = Acquire(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Release()
	text, err := os.ReadFile(filepath.Join(dir, LockName))
	if err != nil || strings.TrimSpace(string(text)) == "" {
		t.Errorf("got %q, %v", text, err)
	}
}

// A link that leads nowhere may be one to a disk that is not mounted: nothing is made
// there, and it is said what is in the way.
func TestDirectoryBehindALinkThatLeadsNowhere(t *testing.T) {
	for _, below := range []string{"", "node", "several/below"} {
		at := t.TempDir()
		link, target := filepath.Join(at, "link"), filepath.Join(at, "unmounted", "data")
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(link, below)
		_, err := Acquire(t.Context(), dir)
		want := fmt.Sprintf("data directory %s: %s is a symbolic link to %s, which does not exist: "+
			"mount or make that directory, or remove the link", dir, link, target)
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if err := os.MkdirAll(target, 0o700); err != nil {
			t.Fatal(err)
		}
		lock, err := Acquire(t.Context(), dir)
		if err != nil {
			t.Fatalf("a link that leads somewhere: %v", err)
		}
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}
}

// A file that is replaced by its own node is in its place at every moment.
func TestTheFileIsInItsPlaceWhileItIsWritten(t *testing.T) {
	f, err := Open(t.TempDir(), "n1", 3, 3)
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 200 && err == nil; i++ {
			_, err = f.CountStart()
		}
		written <- err
	}()
	for {
		select {
		case err := <-written:
			if err != nil {
				t.Error(err)
			}
			return
		default:
			if err := f.Check(); err != nil {
				t.Fatal(errors.Join(err, <-written))
			}
		}
	}
}
