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
	Path    string
	Problem string
}

// Error names the file first.
func (e *FileError) Error() string { return e.Path + " " + e.Problem }

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
		text, err := readFile(path)
		if err != nil {
			return nil, &FileError{part, path, "cannot be read: " + err.Error()}
		}
		read[part] = text
	}
	return read, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, cause(err)
	}
	defer func() { _ = file.Close() }()
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
	notAfter time.Time         // the first end among the certificates that are shown; zero: there are none
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
		made.believed = x509.NewCertPool()
		if !made.believed.AppendCertsFromPEM(read[Authorities]) {
			return nil, &FileError{Authorities, f.Authorities, "holds no certificate in PEM"}
		}
	}
	return made, nil
}

func (f Files) parseShown(read *contents, made *material) error {
	if block, _ := pem.Decode(read[Certificate]); block == nil {
		return &FileError{Certificate, f.Certificate, "holds no certificate in PEM"}
	}
	if block, _ := pem.Decode(read[Key]); block == nil {
		return &FileError{Key, f.Key, "holds no private key in PEM"}
	}
	pair, err := tls.X509KeyPair(read[Certificate], read[Key])
	if err != nil {
		return f.blame(read, err)
	}
	for _, der := range pair.Certificate {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return &FileError{Certificate, f.Certificate, "holds a certificate that cannot be read: " + problem(err)}
		}
		if made.notAfter.IsZero() || certificate.NotAfter.Before(made.notAfter) {
			made.notAfter = certificate.NotAfter
		}
	}
	made.shown = []tls.Certificate{pair}
	return nil
}

// blame finds out which of the two files is at fault.
func (f Files) blame(read *contents, err error) error {
	for rest := read[Certificate]; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return &FileError{Certificate, f.Certificate, "holds no certificate in PEM"}
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, bad := x509.ParseCertificate(block.Bytes); bad != nil {
			return &FileError{Certificate, f.Certificate, "holds a certificate that cannot be read: " + problem(bad)}
		}
		return &FileError{Key, f.Key, "is not the key of " + f.Certificate + ": " + problem(err)}
	}
}

// problem is an error of the library without its name.
func problem(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tls: "), "x509: ")
}
