package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

const (
	incarnationA = "000102030405060708090a0b0c0d0e0f"
	incarnationB = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
)

func lifeA() Life { return Life{Starts: 7, Boot: BootID{1, 2, 3}} }

func TestHeaderRoundTrip(t *testing.T) {
	headers := []Header{
		{Kind: KindRaft, Shard: 7, Cluster: "c1", Target: ServerID("n2", incarnationB), Sender: ServerID("n1", incarnationA), Life: lifeA()},
		{Kind: KindCall, Cluster: strings.Repeat("c", clusterIDBytesMax), Target: ServerID("n2", incarnationB), Sender: ServerID("n1", incarnationA), Life: lifeA()},
		{Kind: KindHello, Sender: ServerID(strings.Repeat("n", NodeNameBytesMax), incarnationA), Life: lifeA()},
	}
	for _, h := range headers {
		encoded, err := h.Encode()
		if err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		r := bytes.NewReader(append(encoded, "next"...))
		got, err := ReadHeader(r)
		if err != nil || got != h {
			t.Errorf("got %+v, %v; want %+v", got, err, h)
		}
		if r.Len() != len("next") {
			t.Errorf("%d bytes left of the 4 behind the header", r.Len())
		}
	}
}

func TestHeaderRefusesWhatIsIncomplete(t *testing.T) {
	good := Header{Kind: KindRaft, Shard: 7, Cluster: "c1", Target: ServerID("n2", incarnationB), Sender: ServerID("n1", incarnationA), Life: lifeA()}
	bad := map[string]func(*Header){
		"kind":               func(h *Header) { h.Kind = 9 },
		"negative shard":     func(h *Header) { h.Shard = -1 },
		"shard of a call":    func(h *Header) { h.Kind = KindCall },
		"no cluster":         func(h *Header) { h.Cluster = "" },
		"long cluster":       func(h *Header) { h.Cluster = strings.Repeat("c", clusterIDBytesMax+1) },
		"no target":          func(h *Header) { h.Target = "" },
		"no incarnation":     func(h *Header) { h.Target = "n2" },
		"short incarnation":  func(h *Header) { h.Target = "n2/00" },
		"upper incarnation":  func(h *Header) { h.Target = raft.ServerID("n2/" + strings.ToUpper(incarnationB)) },
		"no sender":          func(h *Header) { h.Sender = "" },
		"no start":           func(h *Header) { h.Life.Starts = 0 },
		"no boot":            func(h *Header) { h.Life.Boot = BootID{} },
		"newline in a name":  func(h *Header) { h.Sender = ServerID("n\n1", incarnationA) },
		"name that is empty": func(h *Header) { h.Sender = ServerID("", incarnationA) },
	}
	for name, change := range bad {
		h := good
		change(&h)
		if _, err := h.Encode(); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func TestHeaderRefusesEveryCut(t *testing.T) {
	h := Header{Kind: KindRaft, Shard: 7, Cluster: "c1", Target: ServerID("n2", incarnationB), Sender: ServerID("n1", incarnationA), Life: lifeA()}
	encoded, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range encoded {
		if _, err := ReadHeader(bytes.NewReader(encoded[:n])); err == nil {
			t.Errorf("cut at %d of %d: accepted", n, len(encoded))
		}
	}
}

func TestHeaderOfStrangers(t *testing.T) {
	for name, text := range map[string]string{
		"http":       "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"http2":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"tls hello":  "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"zeros":      strings.Repeat("\x00", 1000),
		"ones":       strings.Repeat("\xff", 1000),
		"long field": headerMagic + "\x02\x01\x00\x28" + strings.Repeat("\x01", 28) + "\xff" + strings.Repeat("x", 400),
	} {
		if h, err := ReadHeader(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read as %+v", name, h)
		}
	}
	if _, err := ReadHeader(strings.NewReader("GET / HTTP/1.1\r\n")); !errors.Is(err, errNotAPeer) {
		t.Errorf("http: %v", err)
	}
	if _, err := ReadHeader(strings.NewReader("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")); !errors.Is(err, errTLS) || !errors.Is(err, errNotAPeer) {
		t.Errorf("tls: %v", err)
	}
	if _, err := ReadHeader(strings.NewReader(headerMagic + "\x01\x01\x00\x04")); !errors.Is(err, errVersion) {
		t.Errorf("another version: %v", err)
	}
}

// countingReader tells how much was taken.
type countingReader struct {
	r io.Reader
	n int
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

func FuzzHeader(f *testing.F) {
	for _, h := range []Header{
		{Kind: KindRaft, Shard: 7, Cluster: "c1", Target: ServerID("n2", incarnationB), Sender: ServerID("n1", incarnationA), Life: lifeA()},
		{Kind: KindHello, Sender: ServerID("n1", incarnationA), Life: lifeA()},
	} {
		encoded, err := h.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte(headerMagic + "\x02\x01\xff\xff" + strings.Repeat("\xff", 300)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &countingReader{r: bytes.NewReader(data)}
		h, err := ReadHeader(r)
		if r.n > HeaderBytesMax {
			t.Fatalf("took %d bytes", r.n)
		}
		if err != nil {
			return
		}
		encoded, err := h.Encode()
		if err != nil {
			t.Fatalf("read %+v, which does not encode: %v", h, err)
		}
		if !bytes.Equal(encoded, data[:r.n]) {
			t.Fatalf("one header, two encodings: %x and %x", encoded, data[:r.n])
		}
	})
}

func FuzzHello(f *testing.F) {
	var good bytes.Buffer
	if err := writeHello(&good, HelloMessage{Self: Member{Name: "n1", Incarnation: incarnationA, PeerAddress: "127.0.0.1:7431"}, Shards: 3}); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &countingReader{r: bytes.NewReader(data)}
		m, err := readHello(r)
		if r.n > 4+HelloBytesMax {
			t.Fatalf("took %d bytes", r.n)
		}
		if err != nil {
			return
		}
		// What can be read can be passed on, unless escaping makes it too long.
		if err := writeHello(io.Discard, m); err != nil && !strings.Contains(err.Error(), "hello of") {
			t.Fatal(err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add(appendOK(nil, lifeA()))
	f.Add(appendRefusal(nil, StatusWrongTarget, "this is n2"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &countingReader{r: bytes.NewReader(data)}
		_, _ = readAnswer(r)
		if r.n > 3+reasonBytesMax {
			t.Fatalf("took %d bytes", r.n)
		}
	})
}

func TestAddress(t *testing.T) {
	id := ServerID("n1", incarnationA)
	gotID, gotHostPort := SplitAddress(Address(id, "[::1]:7431"))
	if gotID != id || gotHostPort != "[::1]:7431" {
		t.Errorf("got %q, %q", gotID, gotHostPort)
	}
	if id, hostPort := SplitAddress("127.0.0.1:7431"); id != "" || hostPort != "127.0.0.1:7431" {
		t.Errorf("got %q, %q", id, hostPort)
	}
	if name := NodeName(id); name != "n1" {
		t.Errorf("got %q", name)
	}
}

// TestTheLargestClusterSaysHello: as many nodes as may be, with the longest names and addresses,
// each of them about to be replaced.
func TestTheLargestClusterSaysHello(t *testing.T) {
	address := strings.Repeat("a", addressBytesMax)
	say := HelloMessage{ClusterID: strings.Repeat("c", clusterIDBytesMax), Shards: 1024, StorageFull: true}
	for i := range MembersMax {
		name := fmt.Sprintf("%0*d", NodeNameBytesMax, i)
		say.Peers = append(say.Peers, Listed{Name: name, Address: address})
		for _, incarnation := range []string{incarnationA, incarnationB} {
			say.Members = append(say.Members, Member{Name: name, Incarnation: incarnation, PeerAddress: address, ClientAddress: address})
		}
	}
	say.Self = say.Members[0]
	var wire bytes.Buffer
	if err := writeHello(&wire, say); err != nil {
		t.Fatal(err)
	}
	heard, err := readHello(&wire)
	if err != nil {
		t.Fatal(err)
	}
	say.Format = helloFormat
	if !reflect.DeepEqual(heard, say) {
		t.Error("it is heard as another")
	}
}
