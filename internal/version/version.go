// Package version says which build of the module a program is, as the Go tool has
// recorded it in the binary. Nothing here can fail: what is not recorded is "unknown".
package version

import "runtime/debug"

// Of returns the module's version, such as "v1.2.0"; without one "devel-" and the first
// 12 digits of the commit that was built, "devel" where that is not recorded either, and
// "unknown" for a binary that records nothing.
func Of() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return of(info)
}

func of(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
