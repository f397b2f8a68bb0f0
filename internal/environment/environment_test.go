package environment

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	known := []string{"COORDCTL_ENDPOINTS", "COORDCTL_OTHER"}
	for variable, want := range map[string]string{
		"COORDCTL_ENDPOINTS=x":             "",
		"COORDCTL_ENDPOINT=secret":         "unknown environment variable COORDCTL_ENDPOINT; the nearest that there is: COORDCTL_ENDPOINTS\n",
		"COORDCTL_OHTER=secret":            "the nearest that there is: COORDCTL_OTHER",
		"COORDCTL_=secret":                 "unknown environment variable COORDCTL_\n",
		"COORDCTL_ENDPOINT=":               "", // empty is not set
		"COORDCTLX=1":                      "",
		"coordctl_endpoint=1":              "",
		"PATH=COORDCTL_ENDPOINT=1":         "",
		"COORDCTL_PORT=7420":               "unknown environment variable COORDCTL_PORT\n",
		"COORDCTL_TIMEOUT=secret":          "unknown environment variable COORDCTL_TIMEOUT\n",
		"COORDCTL_BOGUS=secret":            "unknown environment variable COORDCTL_BOGUS\n",
		"COORDCTL_END_POINTS=secret":       "the nearest that there is: COORDCTL_ENDPOINTS\n",
		"COORDCTL_PORT=tcp://10.0.0.1:1":   "", // what Kubernetes sets for services
		"COORDCTL_SERVICE_HOST=10.0.0.1":   "",
		"COORDCTL_PORT_1_TCP_ADDR=10.0.0.": "",
	} {
		err := Check([]string{"HOME=/", variable, "=C:=C:\\"}, "COORDCTL_", known)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("%s: got %v, want %q", variable, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v shows the value", err)
		}
	}
	// The first by name, whatever the order.
	err := Check([]string{"COORDCTL_Z=1", "COORDCTL_A=1"}, "COORDCTL_", known)
	if err == nil || !strings.Contains(err.Error(), "COORDCTL_A") {
		t.Errorf("got %v", err)
	}
}

func TestLookup(t *testing.T) {
	all := []string{"AB=0", "A=1", "A=2", "B="}
	for name, want := range map[string]string{"A": "1", "AB": "0", "B": "", "C": ""} {
		if got := Lookup(all, name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
}
