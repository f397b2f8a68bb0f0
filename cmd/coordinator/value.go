package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/internal/peer"
)

// value is one setting's value, bound to where it is kept.
type value interface {
	// parse sets the value, or says what is wrong with the text, beginning with a verb.
	parse(text string) error
	// String returns what parse would make the value of.
	String() string
	// kind names what is expected, for people.
	kind() string
}

type text struct{ to *string }

func (t text) parse(s string) error { *t.to = s; return nil }
func (t text) String() string       { return *t.to }
func (text) kind() string           { return "text" }

// file is the name of one that is read. As an empty one it would be a port in plain text that was
// meant not to be.
type file struct{ to *string }

func (f file) parse(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("is empty: name a file, or leave it out")
	}
	*f.to = s
	return nil
}
func (f file) String() string { return *f.to }
func (file) kind() string     { return "file" }

type onOff struct{ to *bool }

func (f onOff) parse(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("is %q, it must be true or false", s)
	}
	*f.to = b
	return nil
}
func (f onOff) String() string { return strconv.FormatBool(*f.to) }
func (onOff) kind() string     { return "true or false" }

type duration struct {
	to          *time.Duration
	least, most time.Duration
}

func (d duration) parse(s string) error {
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("is %q, it must be a duration such as 1h30m, 5s or 100ms", s)
	}
	if parsed < d.least || parsed > d.most {
		return fmt.Errorf("is %s, it must be from %s to %s", short(parsed), short(d.least), short(d.most))
	}
	*d.to = parsed
	return nil
}
func (d duration) String() string { return short(*d.to) }
func (d duration) kind() string {
	return fmt.Sprintf("duration, %s to %s", short(d.least), short(d.most))
}

// short returns a duration without the zeros that its String ends with.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

type integer interface {
	int | int64 | uint32 | uint64
}

// amount is a whole number, of bytes or of anything.
type amount[T integer] struct {
	to          *T
	least, most int64
	bytes       bool
}

func number[T integer](to *T, least, most int64) value { return amount[T]{to, least, most, false} }
func size[T integer](to *T, least, most int64) value   { return amount[T]{to, least, most, true} }

func (a amount[T]) parse(s string) error {
	n, err := a.read(s)
	if err != nil {
		return err
	}
	if n < a.least || n > a.most {
		return fmt.Errorf("is %s, it must be from %s to %s", a.format(n), a.format(a.least), a.format(a.most))
	}
	*a.to = T(n)
	return nil
}

func (a amount[T]) read(s string) (int64, error) {
	digits, unit := s, int64(1)
	if a.bytes {
		for i, suffix := range units() {
			if cut, ok := strings.CutSuffix(s, suffix); ok {
				digits, unit = strings.TrimSpace(cut), 1<<(10*(i+1))
			}
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil && a.bytes {
		return 0, fmt.Errorf("is %q, it must be a number of bytes such as 1048576 or 1MiB", s)
	}
	if err != nil {
		return 0, fmt.Errorf("is %q, it must be a whole number", s)
	}
	if n > (1<<63-1)/unit || n < -(1<<62)/unit {
		return 0, fmt.Errorf("is %q, which is too large", s)
	}
	return n * unit, nil
}

func units() []string { return []string{"KiB", "MiB", "GiB", "TiB"} }

func (a amount[T]) format(n int64) string {
	if !a.bytes || n == 0 {
		return strconv.FormatInt(n, 10)
	}
	suffix := ""
	for _, unit := range units() {
		if n%1024 != 0 {
			break
		}
		n, suffix = n/1024, unit
	}
	return strconv.FormatInt(n, 10) + suffix
}

// String is empty for a default that stands for something else, and is no value.
func (a amount[T]) String() string {
	n := int64(*a.to)
	if n < a.least {
		return ""
	}
	return a.format(n)
}

func (a amount[T]) kind() string {
	what := "number"
	if a.bytes {
		what = "bytes"
	}
	if a.most >= 1<<31-1 {
		return fmt.Sprintf("%s, %s or more", what, a.format(a.least))
	}
	return fmt.Sprintf("%s, %s to %s", what, a.format(a.least), a.format(a.most))
}

type level struct{ to *slog.Level }

func (l level) parse(s string) error {
	switch strings.ToLower(s) {
	case "debug":
		*l.to = slog.LevelDebug
	case "info":
		*l.to = slog.LevelInfo
	case "warn":
		*l.to = slog.LevelWarn
	case "error":
		*l.to = slog.LevelError
	default:
		return fmt.Errorf("is %q, it must be debug, info, warn or error", s)
	}
	return nil
}
func (l level) String() string { return strings.ToLower(l.to.String()) }
func (level) kind() string     { return "debug, info, warn or error" }

type choice struct {
	to *string
	of []string
}

func (c choice) parse(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("is %q, it must be one of %s", s, strings.Join(c.of, ", "))
	}
	*c.to = s
	return nil
}
func (c choice) String() string { return *c.to }
func (c choice) kind() string   { return "one of " + strings.Join(c.of, ", ") }

type peers struct{ to *[]peer.Listed }

func (p peers) parse(s string) error {
	*p.to = nil
	if strings.TrimSpace(s) == "" {
		return nil
	}
	for entry := range strings.SplitSeq(s, ",") {
		name, address, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || name == "" || address == "" {
			return fmt.Errorf("has the entry %q, each must be name=host:port", entry)
		}
		*p.to = append(*p.to, peer.Listed{Name: name, Address: address})
	}
	return nil
}

func (p peers) String() string {
	entries := make([]string, len(*p.to))
	for i, l := range *p.to {
		entries[i] = l.Name + "=" + l.Address
	}
	return strings.Join(entries, ",")
}
func (peers) kind() string { return "name=host:port,…" }
