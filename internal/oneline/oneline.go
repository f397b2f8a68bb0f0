// Package oneline makes a line of a text that anybody may have written: an error that names an
// argument, or what a node has said.
//
// Invariant: the line holds nothing that a terminal acts upon, or that ends it.
package oneline

import (
	"strconv"
	"strings"
	"unicode"
)

// Of returns the text as one line. Line ends, which joined errors have, become semicolons. What is not
// to be shown as it is stands there as Go escapes it: control characters, those of C1 too, and what
// turns a text around. What is no UTF-8 is U+FFFD.
func Of(text string) string {
	var line strings.Builder
	ended := false
	for _, r := range strings.TrimSpace(text) {
		switch {
		case r == '\n' || r == '\r':
			ended = true
			continue
		case ended:
			line.WriteString("; ")
			ended = false
		}
		if unicode.IsPrint(r) {
			line.WriteRune(r)
		} else {
			line.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return line.String()
}
