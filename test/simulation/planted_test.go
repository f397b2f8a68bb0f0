package simulation

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestPlantedFaults: a cluster with a fault in one of its rules does not get through an
// hour, and for the right reason. Each fault shows only where leaders change.
func TestPlantedFaults(t *testing.T) {
	if *hoursFlag > 0 {
		t.Skip("a long simulation is of what is right")
	}
	for _, planted := range []struct {
		name, file, old, new, rule string
	}{
		{"the clock of a new leader is ahead", "internal/actor/leadership.go",
			"a.lead.noted, a.lead.base = clock.Noted, time.Now()", "a.lead.noted, a.lead.base = clock.Noted, time.Now().Add(-3*time.Second)", "EARLY:"},
		{"live time is hardly ever written down", "internal/alarm/alarm.go",
			"DriftMin = time.Second", "DriftMin = time.Hour", "LATE:"},
	} {
		t.Run(planted.name, func(t *testing.T) {
			dir := scratch(t)
			binary := build(t, dir, planted.file, planted.old, planted.new)
			command := exec.CommandContext(t.Context(), binary, "-test.run=^TestSimulate$", "-test.v", "-hours=1", "-seed="+strconv.FormatUint(drawSeed(), 10))
			command.Env = append(os.Environ(), "TMPDIR="+dir)
			out, err := command.CombinedOutput()
			if err == nil || !strings.Contains(string(out), planted.rule) {
				t.Errorf("no %s found: %v\n%.4000s", planted.rule, err, out)
			}
		})
	}
}

// build builds this package's tests with an edit in one file.
func build(t *testing.T, dir, file, from, to string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", file))
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(source), from) != 1 {
		t.Fatalf("%s does not have %q once: the edit is out of date", file, from)
	}
	edited := filepath.Join(dir, "edited.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: edited}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{edited: strings.Replace(string(source), from, to, 1), filepath.Join(dir, "overlay.json"): string(overlay)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "simulation.test")
	command := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}
