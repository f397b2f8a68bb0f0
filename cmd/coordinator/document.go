package main

import (
	"fmt"
	"io"
	"strings"
)

// writeHelp writes what --help shows.
func writeHelp(w io.Writer, about string) {
	var b strings.Builder
	b.WriteString(about + "\n\nUsage:\n  coordinator [flags]\n")
	for _, section := range table(defaults()) {
		b.WriteString("\n" + section.title + ":\n")
		for _, s := range section.settings {
			writeFlag(&b, "--"+s.name, s.usage, s.value)
		}
	}
	b.WriteString("\nOther flags:\n")
	writeFlag(&b, "--"+configSetting, "YAML file with settings, by the names of the flags.", nil)
	writeFlag(&b, "--version", "Print the version.", nil)
	writeFlag(&b, "--help, -h", "Print this.", nil)
	b.WriteString(`
Each setting is also an environment variable, COORDINATOR_ and its name with
underscores, such as ` + (setting{name: "data-dir"}).environment() + `, and a key of the YAML file. A
flag counts before the environment, and that before the file. An unknown variable
that begins so is an error.

SIGTERM, SIGINT and SIGHUP stop a node gracefully, SIGHUP unless it is ignored
from the start (nohup); a second one ends it at once.

Exit codes: 0 stopped by a signal · 1 could not start or go on · 2 wrong setting
`)
	_, _ = io.WriteString(w, b.String())
}

// writeFlag writes one flag, its text wrapped at 80 columns.
func writeFlag(b *strings.Builder, name, usage string, v value) {
	if v != nil {
		if _, isSwitch := v.(onOff); !isSwitch && v.String() != "" {
			usage += " [" + v.String() + "]"
		}
	}
	const column, width = 26, 80
	line := "  " + name
	if len(line) > column-2 {
		b.WriteString(line + "\n")
		line = ""
	}
	line += strings.Repeat(" ", column-len(line))
	empty := true
	for word := range strings.FieldsSeq(usage) {
		if !empty && len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line, empty = strings.Repeat(" ", column), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	b.WriteString(line + "\n")
}

// writeDocument writes docs/settings.md.
func writeDocument(w io.Writer) {
	var b strings.Builder
	b.WriteString(`# Settings of a node

<!-- Written by UPDATE=1 go test ./cmd/coordinator -run TestDocument from the table in
cmd/coordinator/settings.go. Do not edit. -->

Each setting is a flag of ` + "`coordinator`" + `, an environment variable, and a key of the YAML file that
` + "`--config`" + ` (or ` + "`" + (setting{name: configSetting}).environment() + "`" + `) names. A flag counts before the environment, that before the file, and that
before the default. An environment variable that is empty is not set. A key that the file
should not have is an error, as is a value out of range or an unknown variable that begins with ` + "`" + environmentPrefix + "`" + `: the
node then says which one in one line and exits with 2. (Variables by which Kubernetes describes a service of that
name, such as ` + "`" + environmentPrefix + "SERVICE_HOST`" + `, and ` + "`" + fenceVariable + "`" + `, which ` + "`coordctl run`" + ` gives to its command, are left alone.)

Durations are written as ` + "`1h30m`, `5s` or `100ms`" + `; bytes as ` + "`1048576` or `1MiB`" + `. In the file, ` + "`peers`" + ` may also be a
mapping of names to addresses.
`)
	for _, section := range table(defaults()) {
		fmt.Fprintf(&b, "\n## %s\n\n| flag and key | environment | value | default | |\n|---|---|---|---|---|\n", section.title)
		for _, s := range section.settings {
			byDefault := ""
			if d := s.value.String(); d != "" {
				byDefault = "`" + d + "`"
			}
			fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s | %s |\n", s.name, s.environment(), s.value.kind(), byDefault, s.usage)
		}
	}
	_, _ = io.WriteString(w, b.String())
}
