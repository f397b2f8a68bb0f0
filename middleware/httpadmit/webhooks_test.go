package httpadmit_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// Each of 91 real webhooks comes five times at once, is handled once, and is answered
// five times with the same bytes.
func TestWebhooks(t *testing.T) {
	file, err := os.Open("testdata/webhooks/github.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var mu sync.Mutex
	runs := map[string]int{}
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("X-GitHub-Delivery")
		runs[id]++
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Header().Set("X-Handled", id)
		w.WriteHeader(http.StatusAccepted)
		if _, err2 := w.Write(body); err != nil || err2 != nil {
			t.Error(err, err2)
		}
	}, httpadmit.WithKeys(httpadmit.KeyFromHeader("X-GitHub-Delivery")), httpadmit.WithKeyRequired(), httpadmit.WithWait(time.Minute))

	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	count := 0
	for lines.Scan() {
		var webhook struct {
			Event   string
			Source  string
			Payload json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &webhook); err != nil {
			t.Fatal(err)
		}
		count++
		var answers [5]answered
		var together sync.WaitGroup
		for i := range answers {
			r := request(t, http.MethodPost, server.URL+"/hooks", string(webhook.Payload),
				"X-GitHub-Delivery", webhook.Source, "X-GitHub-Event", webhook.Event, "Content-Type", "application/json")
			together.Go(func() {
				var err error
				if answers[i], err = try(r); err != nil {
					t.Error(err)
				}
			})
		}
		together.Wait()
		replays := 0
		for _, a := range answers {
			if a.replayed() {
				replays++
			}
			if a.status != http.StatusAccepted || a.body != string(webhook.Payload) || a.cut != nil ||
				a.header.Get("X-Handled") != webhook.Source || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("%s: %d, %d bytes of %d, %v", webhook.Source, a.status, len(a.body), len(webhook.Payload), a.header)
			}
		}
		if runs[webhook.Source] != 1 || replays != 4 {
			t.Errorf("%s: handled %d times, replayed %d times", webhook.Source, runs[webhook.Source], replays)
		}
	}
	if err := lines.Err(); err != nil || count != 91 {
		t.Fatalf("%d webhooks, %v", count, err)
	}
}
