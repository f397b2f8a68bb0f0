package version

import (
	"runtime/debug"
	"testing"
)

func TestOf(t *testing.T) {
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}}
	for want, info := range map[string]*debug.BuildInfo{
		"v1.2.0":                 {Main: debug.Module{Version: "v1.2.0"}, Settings: commit},
		"devel-0123456789ab":     {Main: debug.Module{Version: "(devel)"}, Settings: commit},
		"devel":                  {Main: debug.Module{Version: "(devel)"}},
		"v0.0.0-20260102-abcdef": {Main: debug.Module{Version: "v0.0.0-20260102-abcdef"}},
	} {
		if got := of(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if Of() == "" {
		t.Error("a test binary has no version at all")
	}
}
