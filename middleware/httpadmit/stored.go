package httpadmit

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
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

// storable returns the response as it is stored: without what is never stored, and
// without the headers that were there before the handler ran and that it left alone:
// they are set anew on a replay.
func (r *recorder) storable(never map[string]bool) client.Response {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.whole() {
		return admit.Omitted(r.status, r.written)
	}
	response := client.Response{Code: r.status, Body: r.body}
	named := map[string]bool{}
	for _, line := range r.sent["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			named[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	skip := func(name string) bool {
		canonical := http.CanonicalHeaderKey(name)
		return never[canonical] || named[canonical] || !isToken(name) // net/http does not send it
	}
	for _, name := range slices.Sorted(maps.Keys(r.sent)) {
		values := r.sent[name]
		switch {
		case skip(name):
		case name == "Content-Type" && len(values) == 1 && utf8.ValidString(values[0]):
			response.ContentType = values[0]
		case slices.Equal(values, r.outside[name]):
		default:
			for _, value := range values {
				response.Headers = append(response.Headers, client.Header{Name: name, Value: value})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.trailers)) {
		for _, value := range r.trailers[name] {
			if !skip(name) {
				response.Headers = append(response.Headers, client.Header{Name: http.TrailerPrefix + name, Value: value})
			}
		}
	}
	return response
}

// isToken reports whether a name is one that a header can have (RFC 9110, section 5.6.2).
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
			return false
		}
		return !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// replay answers with a stored response. It may be one that an operator wrote, or another
// kind of client: what would break the answer is left out.
func (g *guard) replay(w http.ResponseWriter, method string, response client.Response) {
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
		switch {
		case g.never[canonical]:
		case canonical == "Content-Length" && method != http.MethodHead && line.Value != strconv.Itoa(len(response.Body)):
		case canonical == "Content-Length", canonical == "Content-Type":
			into[canonical] = append(into[canonical], line.Value)
		default:
			into[name] = append(into[name], line.Value)
		}
	}
	switch {
	case response.ContentType != "":
		header["Content-Type"] = []string{response.ContentType}
	case header["Content-Type"] == nil:
		header["Content-Type"] = nil // there was none, and net/http must not guess one
	}
	header[ReplayedHeader] = []string{"true"}
	maps.Copy(w.Header(), header)
	write(w, response.Code, response.Body, trailers)
}
