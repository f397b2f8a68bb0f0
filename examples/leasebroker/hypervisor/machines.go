package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
)

// Bounds. A call that is over one is refused.
const (
	machinesMost = 10_000 // ever
	tokensMost   = 100_000
	bodyMost     = 16 << 10
	textMost     = 128 // a name, a token
)

// States of a machine.
const (
	running    = "running"
	terminated = "terminated"
)

// machine is one machine, as it is told to callers.
type machine struct {
	ID      string `json:"id"` // never given twice
	Name    string `json:"name"`
	Flavor  string `json:"flavor"`
	Address string `json:"address"`
	State   string `json:"state"`
	Boots   int    `json:"boots"` // 1 when it was made, and one more for each reboot
}

// hypervisor is the service.
type hypervisor struct {
	capacity int
	faults   faults

	mu       sync.Mutex
	machines []*machine // in the order in which they were made, the terminated ones too
	tokens   map[string]use
}

// use is what a token was used for, and what came of it.
type use struct {
	what string
	made machine // as it was answered
	of   *machine
}

func newHypervisor(capacity int) *hypervisor {
	return &hypervisor{capacity: capacity, tokens: make(map[string]use)}
}

func (h *hypervisor) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /machines", func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Name, Flavor string }
		if err := read(w, r, &asked); err != nil {
			answer(w, http.StatusBadRequest, failure{err.Error()})
			return
		}
		h.call(w, r, "create", "create "+asked.Flavor+" "+asked.Name, func() (*machine, *refusal) {
			return h.create(asked.Name, asked.Flavor)
		})
	})
	mux.HandleFunc("POST /machines/{id}/reboot", func(w http.ResponseWriter, r *http.Request) {
		h.call(w, r, "reboot", "reboot "+r.PathValue("id"), func() (*machine, *refusal) { return h.reboot(r.PathValue("id")) })
	})
	mux.HandleFunc("POST /machines/{id}/terminate", func(w http.ResponseWriter, r *http.Request) {
		h.call(w, r, "terminate", "terminate "+r.PathValue("id"), func() (*machine, *refusal) { return h.terminate(r.PathValue("id")) })
	})
	mux.HandleFunc("GET /machines", h.list)
	mux.HandleFunc("POST /faults", h.faults.add)
	mux.HandleFunc("GET /faults", h.faults.list)
	mux.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) {
		h.faults.clear()
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// refusal is a call that did nothing.
type refusal struct {
	status int
	text   string
}

// call carries a call out once for each token, unless it is to go wrong. Whatever becomes
// of its caller meanwhile, what has arrived is carried out.
func (h *hypervisor) call(w http.ResponseWriter, r *http.Request, name, what string, effect func() (*machine, *refusal)) {
	token := r.Header.Get("Client-Token")
	if token == "" || len(token) > textMost {
		answer(w, http.StatusBadRequest, failure{fmt.Sprintf("Client-Token must have 1 to %d bytes", textMost)})
		return
	}
	if h.faults.strike(w, name, "before") {
		return
	}
	made, err := h.once(token, what, effect)
	h.faults.passed()
	if h.faults.strike(w, name, "after") {
		return
	}
	if err != nil {
		answer(w, err.status, failure{err.text})
		return
	}
	answer(w, http.StatusOK, made)
}

// once has the effect of a call, or remembers the one that its token had.
func (h *hypervisor) once(token, what string, effect func() (*machine, *refusal)) (machine, *refusal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if used, ok := h.tokens[token]; ok {
		if used.what != what {
			return machine{}, &refusal{http.StatusUnprocessableEntity, "this Client-Token was used for another call"}
		}
		made := used.made
		made.State = used.of.State // who asks again must not be told of a machine that is gone
		return made, nil
	}
	if len(h.tokens) >= tokensMost {
		return machine{}, &refusal{http.StatusConflict, "there are too many tokens"}
	}
	of, err := effect()
	if err != nil {
		return machine{}, err
	}
	h.tokens[token] = use{what, *of, of} // a refusal is not remembered: it may succeed later
	return *of, nil
}

func (h *hypervisor) create(name, flavor string) (*machine, *refusal) {
	if name == "" || len(name) > textMost {
		return nil, &refusal{http.StatusBadRequest, fmt.Sprintf("the name must have 1 to %d bytes", textMost)}
	}
	if !slices.Contains([]string{"small", "medium", "large"}, flavor) {
		return nil, &refusal{http.StatusUnprocessableEntity, "there is no such flavor"}
	}
	up := 0
	for _, m := range h.machines {
		if m.State == running {
			up++
		}
	}
	if up >= h.capacity || len(h.machines) >= machinesMost {
		return nil, &refusal{http.StatusConflict, "there is no capacity"}
	}
	n := len(h.machines) + 1
	m := &machine{
		ID: fmt.Sprintf("m-%05d", n), Name: name, Flavor: flavor, State: running, Boots: 1,
		Address: fmt.Sprintf("10.0.%d.%d", n/256, n%256),
	}
	h.machines = append(h.machines, m)
	return m, nil
}

func (h *hypervisor) reboot(id string) (*machine, *refusal) {
	m, err := h.find(id)
	if err != nil {
		return nil, err
	}
	if m.State != running {
		return nil, &refusal{http.StatusGone, "the machine is terminated"}
	}
	m.Boots++
	return m, nil
}

func (h *hypervisor) terminate(id string) (*machine, *refusal) {
	m, err := h.find(id)
	if err != nil {
		return nil, err
	}
	m.State = terminated
	return m, nil
}

func (h *hypervisor) find(id string) (*machine, *refusal) {
	for _, m := range h.machines {
		if m.ID == id {
			return m, nil
		}
	}
	return nil, &refusal{http.StatusNotFound, "there is no such machine"}
}

func (h *hypervisor) list(w http.ResponseWriter, r *http.Request) {
	only := r.URL.Query().Get("state")
	found := []machine{}
	h.mu.Lock()
	for _, m := range h.machines {
		if only == "" || m.State == only {
			found = append(found, *m)
		}
	}
	h.mu.Unlock()
	answer(w, http.StatusOK, map[string][]machine{"machines": found})
}

// failure is the body of a refusal.
type failure struct {
	Error string `json:"error"`
}

func read(w http.ResponseWriter, r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyMost))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("the body is not what it should be: %w", err)
	}
	return nil
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a caller that is gone hears nothing
}
