package lease

import (
	"strconv"
	"unicode/utf8"
)

// shownMost is how much of a part of a name a log shows, in bytes: all of what may be one.
const shownMost = 255

// Named returns the attributes by which a log names the record of an operation, so that whoever has to
// settle it knows which one it is. A part that is empty is left out.
//
// The key and the operation are the caller's own choice. A part in which there is anything that a line
// does not show as it is stands there as Go quotes it, with the quotes, and is cut where it is longer
// than it may be: so no caller writes lines of its own, whatever the log makes of a value.
func Named(namespace, principal, operation, key string) []any {
	var attributes []any
	for _, part := range [...]struct{ name, value string }{
		{"namespace", namespace}, {"principal", principal}, {"operation", operation}, {"key", key},
	} {
		if part.value != "" {
			attributes = append(attributes, part.name, shown(part.value))
		}
	}
	return attributes
}

// shown is a part as it is, or quoted. Nothing that begins and ends with a quote is shown as it is, so
// that no two parts are shown alike.
func shown(part string) string {
	cut := ""
	if len(part) > shownMost {
		at := shownMost
		for at > shownMost-utf8.UTFMax && !utf8.RuneStart(part[at]) {
			at--
		}
		part, cut = part[:at], "…"
	}
	if quoted := strconv.Quote(part); quoted[1:len(quoted)-1] != part || cut != "" {
		return quoted + cut
	}
	return part
}
