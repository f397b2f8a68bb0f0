package httpadmit

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// ReplayedHeader marks a replay. Its value is "true".
const ReplayedHeader = "Idempotent-Replayed"

// NeverStored returns the headers that are not stored unless [WithNeverStored] says
// otherwise: those that belong to the one caller who got them. Headers of the connection
// are never stored, whatever the list says.
func NeverStored() []string { return []string{"Set-Cookie", "Set-Cookie2"} }

// hopByHop are headers of one connection, or of one answer.
func hopByHop() []string {
	return []string{
		"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", ReplayedHeader,
	}
}

// storable returns a complete response as it is stored: without what is never stored, and
// without the headers that were there before the handler ran and that it left alone:
// they are set anew on a replay. It also returns the names of headers with a value that
// cannot be stored: a replay goes without that.
func (r *recorder) storable(never map[string]bool) (response client.Response, unstored []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	response = client.Response{Code: r.head.status, Body: r.body}
	add := func(prefix, name string, values []string) {
		for _, value := range values {
			if value, ok := sendable(value); ok && utf8.ValidString(value) {
				response.Headers = append(response.Headers, client.Header{Name: prefix + name, Value: value})
			} else {
				unstored = append(unstored, name)
			}
		}
	}
	named := map[string]bool{}
	for _, line := range r.head.header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	skip := func(name string) bool {
		canonical := http.CanonicalHeaderKey(name)
		return never[canonical] || named[canonical] || !httpguts.ValidHeaderFieldName(name) // net/http does not send it
	}
	for _, name := range slices.Sorted(maps.Keys(r.head.header)) {
		values := r.head.header[name]
		switch {
		case skip(name):
		case name == "Content-Type" && len(values) == 1 && utf8.ValidString(values[0]):
			if value, ok := sendable(values[0]); ok {
				response.ContentType = value
			}
		case slices.Equal(values, r.outside[name]):
		default:
			add("", name, values)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.trailers)) {
		if !skip(name) {
			add(http.TrailerPrefix, name, r.trailers[name])
		}
	}
	return response, unstored
}

// sendable returns a value as net/http sends it over HTTP/1, with spaces for the ends of
// lines, and whether it can be one: with another control character in it a caller could
// not read the answer (RFC 9110, section 5.5).
func sendable(value string) (string, bool) {
	value = strings.NewReplacer("\n", " ", "\r", " ").Replace(value)
	return value, httpguts.ValidHeaderFieldValue(value)
}

// replay answers with a stored response. It may be one that an operator wrote, or another
// kind of client: what would break the answer is left out.
func (g *guard) replay(w http.ResponseWriter, r *http.Request, response client.Response) {
	if response.Omitted() || response.Code < 200 || response.Code > 999 {
		g.answer(w, refusal.Omitted(response.Code))
		return
	}
	header, trailers := http.Header{}, http.Header{}
	for _, line := range response.Headers {
		into, name := header, line.Name
		if rest, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			into, name = trailers, rest
		}
		canonical := http.CanonicalHeaderKey(name)
		switch value, fits := sendable(line.Value); {
		case g.never[canonical] || !fits:
		case canonical == "Content-Length" && r.Method != http.MethodHead && value != strconv.Itoa(len(response.Body)):
		case canonical == "Content-Length", canonical == "Content-Type":
			into[canonical] = append(into[canonical], value)
		default:
			into[name] = append(into[name], value)
		}
	}
	switch {
	case response.ContentType != "":
		header["Content-Type"] = []string{response.ContentType}
	case header["Content-Type"] == nil:
		header["Content-Type"] = nil // there was none, and net/http must not guess one
	}
	header[ReplayedHeader] = []string{"true"}
	h := newHead(response.Code, header)
	h.delimit(r, response.Body)
	maps.Copy(w.Header(), h.header)
	write(w, response.Code, response.Body, trailers)
}
