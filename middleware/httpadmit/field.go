package httpadmit

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Field is one part of a request that an automatic key or a fingerprint is made of.
// Fields are framed with their names and lengths: no two different choices of values
// ever give the same bytes, and a field that is missing is not one that is empty.
type Field struct {
	name     string
	optional bool
	read     func(*request) (value []byte, ok bool, err error)
}

// Optional returns the field, not refusing a request that does not have it.
func (f Field) Optional() Field {
	f.optional = true
	return f
}

// JSONField is the member of the JSON body at the path. Its type counts, "1" is not 1;
// numbers are compared by their exact value, so that 1.50 is 1.5; the order of an
// object's members does not count. null is no value.
func JSONField(path ...string) Field {
	return Field{name: "json " + strings.Join(path, "\x00"), read: func(q *request) ([]byte, bool, error) {
		value, ok, err := q.member(path)
		if err != nil || !ok {
			return nil, false, err
		}
		return appendValue(nil, value), true, nil
	}}
}

// QueryField is a parameter of the request's query, with all its values.
func QueryField(name string) Field {
	return Field{name: "query " + name, read: func(q *request) ([]byte, bool, error) {
		values, ok := q.target().Query()[name]
		return framed(nil, values...), ok, nil
	}}
}

// HeaderField is a header of the request, with all its lines.
func HeaderField(name string) Field {
	name = http.CanonicalHeaderKey(name)
	return Field{name: "header " + name, read: func(q *request) ([]byte, bool, error) {
		lines, ok := q.http.Header[name]
		return framed(nil, lines...), ok, nil
	}}
}

// FieldFunc is a field of another kind: of a text, a form, a path. The name tells it
// from other fields. The function must not read the request's own Body.
func FieldFunc(name string, read func(r *http.Request, body []byte) (value string, ok bool)) Field {
	if read == nil {
		return Field{} // who takes it says so
	}
	return Field{name: "function " + name, read: func(q *request) ([]byte, bool, error) {
		body, err := q.body()
		if err != nil {
			return nil, false, err
		}
		value, ok := read(q.http, body)
		return []byte(value), ok, nil
	}}
}

// checkFields reports what is wrong with the fields of what is called so.
func checkFields(of string, fields []Field) error {
	if len(fields) == 0 {
		return fmt.Errorf("%s: there are no fields", of)
	}
	for _, field := range fields {
		if field.read == nil {
			return fmt.Errorf("%s: a field is empty, or has no function", of)
		}
	}
	return nil
}

// appendFields appends the fields of a request. One that is missing and not optional
// refuses it.
func appendFields(to []byte, q *request, fields []Field) ([]byte, error) {
	for _, field := range fields {
		value, ok, err := field.read(q)
		switch {
		case err != nil:
			return nil, err
		case !ok && !field.optional:
			kind, name, _ := strings.Cut(field.name, " ")
			return nil, keyInvalid("the request does not have the field %s (%s) that tells it from others",
				strconv.Quote(strings.ReplaceAll(name, "\x00", ".")), kind)
		case !ok:
			to = framed(to, field.name, "missing")
		default:
			to = framed(to, field.name, "present", string(value))
		}
	}
	return to, nil
}

// framed appends parts, each behind its length, and their number before all of them.
func framed(to []byte, parts ...string) []byte {
	to = binary.AppendUvarint(to, uint64(len(parts)))
	for _, part := range parts {
		to = binary.AppendUvarint(to, uint64(len(part)))
		to = append(to, part...)
	}
	return to
}

// appendValue appends a JSON value, the same bytes for the same value.
func appendValue(to []byte, value any) []byte {
	switch v := value.(type) {
	case map[string]any:
		to = framed(to, "object", strconv.Itoa(len(v)))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			to = appendValue(framed(to, name), v[name])
		}
		return to
	case []any:
		to = framed(to, "array", strconv.Itoa(len(v)))
		for _, element := range v {
			to = appendValue(to, element)
		}
		return to
	case json.Number:
		return framed(to, "number", decimal(string(v)))
	case string:
		return framed(to, "string", v)
	}
	return framed(to, "literal", fmt.Sprint(value))
}

// decimal returns a number of JSON in the one form that its value has: the digits
// without zeros at either end, and a power of ten. No bits are lost, and a large exponent
// costs nothing.
func decimal(literal string) string {
	mantissa, exponentText, _ := strings.Cut(strings.ToLower(literal), "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return "0"
	}
	exponent, err := strconv.ParseInt(strings.TrimPrefix(exponentText, "+"), 10, 32)
	if exponentText != "" && err != nil {
		return literal // beyond every quantity: taken by its letters
	}
	trimmed := strings.TrimRight(digits, "0")
	exponent += int64(len(digits) - len(trimmed) - len(fraction))
	sign := ""
	if negative {
		sign = "-"
	}
	return sign + trimmed + "e" + strconv.FormatInt(exponent, 10)
}
