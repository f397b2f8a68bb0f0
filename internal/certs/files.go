package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// FileBytesMax bounds each file, in bytes: a bundle of all public authorities is a fifth of it.
const FileBytesMax = 1 << 20

// Files names PEM files. Certificate and Key come together; a port that accepts needs both. An
// end that dials may have the Authorities alone.
type Files struct {
	// Certificate is what this end shows, with those between it and an authority behind it.
	Certificate string
	// Key is the private key of the certificate, without a passphrase.
	Key string
	// Authorities signed what the other end has to show. Empty: an accepting end asks for
	// nothing, and one that dials believes the authorities of the system.
	Authorities string
}

// Part is one of the [Files].
type Part int

// The parts.
const (
	Certificate Part = iota
	Key
	Authorities
)

// FileError says what is wrong with a file.
type FileError struct {
	Part    Part
	Path    string // "" where the name is none, and may be a secret
	Problem string
}

// Error names the file first.
func (e *FileError) Error() string { return strings.TrimPrefix(e.Path+" "+e.Problem, " ") }

// OfSetting is the error behind the name of a setting that names the file.
func (e *FileError) OfSetting() string {
	if e.Path == "" {
		return e.Problem
	}
	return "names " + e.Path + ", which " + e.Problem
}

// Given reports whether any file is named.
func (f Files) Given() bool { return f != Files{} }

// contents are the files as they were read, by part.
type contents [Authorities + 1][]byte

func (c *contents) equal(other *contents) bool {
	for part := range c {
		if !bytes.Equal(c[part], other[part]) {
			return false
		}
	}
	return true
}

// path returns the name of a part; "" where it is not given.
func (f Files) path(part Part) string {
	return [...]string{Certificate: f.Certificate, Key: f.Key, Authorities: f.Authorities}[part]
}

// read reads all files that are named.
func (f Files) read() (*contents, error) {
	read := &contents{}
	for part := range Authorities + 1 {
		path := f.path(part)
		if path == "" {
			continue
		}
		if strings.Contains(path, "\n") || strings.Contains(path, "-----BEGIN") {
			return nil, &FileError{part, "", "holds PEM text, and takes the name of a file"}
		}
		text, err := readFile(path)
		if err != nil {
			return nil, &FileError{part, path, "cannot be read: " + err.Error()}
		}
		read[part] = text
	}
	return read, nil
}

// readFile reads a file, and nothing that one would wait for.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer func() { _ = file.Close() }()
	switch info, err := file.Stat(); {
	case err != nil:
		return nil, cause(err)
	case info.IsDir():
		return nil, errors.New("it is a directory")
	case !info.Mode().IsRegular():
		return nil, errors.New("it is no regular file")
	}
	text, err := io.ReadAll(io.LimitReader(file, FileBytesMax+1))
	if err != nil {
		return nil, cause(err)
	}
	if len(text) > FileBytesMax {
		return nil, fmt.Errorf("it is larger than %d bytes", FileBytesMax)
	}
	return text, nil
}

// cause is what the system has to say, without the path once more.
func cause(err error) error {
	if wrapped := (*os.PathError)(nil); errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// material is what the files hold.
type material struct {
	shown    []tls.Certificate // one, or none
	believed *x509.CertPool    // nil: none is given
	// From the last beginning to the first end among the certificates that are shown; zero: there
	// are none.
	notBefore, notAfter time.Time
	between             *x509.CertPool // what is shown behind the certificate itself
}

// untimely returns why what is shown is not valid at a time; nil: it is, or nothing is shown.
func (m *material) untimely(now time.Time) error {
	switch {
	case len(m.shown) == 0:
		return nil
	case now.Before(m.notBefore):
		return fmt.Errorf("is not valid before %s", m.notBefore.UTC().Format(time.RFC3339))
	case !now.Before(m.notAfter):
		return fmt.Errorf("was valid until %s", m.notAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// disbelief is why an end with the same authorities, which dials this one by a host and is dialed by
// it, does not believe what is shown, which is timely; nil: it does, or nothing is shown or believed.
func (m *material) disbelief(host string, now time.Time) error {
	if len(m.shown) == 0 || m.believed == nil {
		return nil
	}
	believe := func(host string, usage x509.ExtKeyUsage) error {
		_, err := m.shown[0].Leaf.Verify(x509.VerifyOptions{
			DNSName: host, Roots: m.believed, Intermediates: m.between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		return err
	}
	if err := believe(host, x509.ExtKeyUsageServerAuth); err != nil {
		return fmt.Errorf("is not believed of the end that is dialed: %s", problem(err))
	}
	if err := believe("", x509.ExtKeyUsageClientAuth); err != nil {
		return fmt.Errorf("is not believed of the end that is dialing: %s", problem(err))
	}
	return nil
}

// parse makes sense of the files.
func (f Files) parse(read *contents) (*material, error) {
	made := &material{}
	if f.Certificate != "" {
		if err := f.parseShown(read, made); err != nil {
			return nil, err
		}
	}
	if f.Authorities != "" {
		certificates, wrong := certificatesIn(read[Authorities])
		if wrong != "" {
			return nil, &FileError{Authorities, f.Authorities, wrong}
		}
		made.believed = x509.NewCertPool()
		for _, certificate := range certificates {
			made.believed.AddCert(certificate)
		}
	}
	return made, nil
}

func (f Files) parseShown(read *contents, made *material) error {
	certificates, wrong := certificatesIn(read[Certificate])
	if wrong != "" {
		return &FileError{Certificate, f.Certificate, wrong}
	}
	if wrong := wrongKey(read[Key]); wrong != "" {
		return &FileError{Key, f.Key, wrong}
	}
	pair, err := tls.X509KeyPair(read[Certificate], read[Key])
	if err != nil {
		return &FileError{Key, f.Key, "is not the key of " + f.Certificate + ": " + problem(err)}
	}
	made.shown, made.between = []tls.Certificate{pair}, x509.NewCertPool()
	for _, certificate := range certificates[1:] {
		made.between.AddCert(certificate)
	}
	made.notBefore, made.notAfter = certificates[0].NotBefore, certificates[0].NotAfter
	for _, certificate := range certificates {
		if certificate.NotBefore.After(made.notBefore) {
			made.notBefore = certificate.NotBefore
		}
		if certificate.NotAfter.Before(made.notAfter) {
			made.notAfter = certificate.NotAfter
		}
	}
	return nil
}

// begin is what every block of PEM begins with.
const begin = "-----BEGIN "

// blocksIn returns the blocks of a file, or what is wrong with it. The library passes over what it
// cannot read: of a file that is being written, or was cut off, a part would be taken for the whole.
func blocksIn(text []byte) (blocks []*pem.Block, wrong string) {
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks = append(blocks, block)
	}
	if began := bytes.Count(text, []byte(begin)); began != len(blocks) {
		return nil, fmt.Sprintf("holds %d blocks of PEM, of which %d can be read: it is damaged, or not written to its end", began, len(blocks))
	}
	return blocks, ""
}

// certificatesIn returns the certificates of a file, at least one, or what is wrong with it.
func certificatesIn(text []byte) (certificates []*x509.Certificate, wrong string) {
	blocks, wrong := blocksIn(text)
	if wrong != "" {
		return nil, wrong
	}
	for _, block := range blocks {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, "holds a certificate that cannot be read: " + problem(err)
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, "holds no certificate in PEM"
	}
	return certificates, ""
}

// wrongKey returns what is wrong with the file of a key, whichever certificate it is for.
func wrongKey(text []byte) string {
	blocks, wrong := blocksIn(text)
	if wrong != "" {
		return wrong
	}
	for _, block := range blocks {
		switch {
		case block.Type == "ENCRYPTED PRIVATE KEY", strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED"):
			return "is encrypted: the key has to be there without a passphrase"
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return ""
		}
	}
	return "holds no private key in PEM"
}

// problem is an error of the library without its name.
func problem(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tls: "), "x509: ")
}
