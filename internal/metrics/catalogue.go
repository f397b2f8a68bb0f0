package metrics

import (
	"fmt"
	"io"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// prefix begins the name of every metric that is ours.
const prefix = "coordinator_"

// The types of metrics.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// entry is one metric as it is described, to programs and in docs/metrics.md.
type entry struct {
	section string
	name    string
	kind    string
	labels  []string
	help    string
	desc    *prometheus.Desc
}

// catalogue lists the metrics in the order of the page.
type catalogue struct {
	section string
	entries []entry
}

func (c *catalogue) add(kind, name, help string, labels ...string) *prometheus.Desc {
	desc := prometheus.NewDesc(prefix+name, help, labels, nil)
	c.entries = append(c.entries, entry{section: c.section, name: prefix + name, kind: kind, labels: labels, help: help, desc: desc})
	return desc
}

func (c *catalogue) gauge(name, help string, labels ...string) *prometheus.Desc {
	return c.add(gauge, name, help, labels...)
}

func (c *catalogue) counter(name, help string, labels ...string) *prometheus.Desc {
	return c.add(counter, name, help, labels...)
}

func (c *catalogue) histogram(name, help string, labels ...string) *prometheus.Desc {
	return c.add(histogram, name, help, labels...)
}

// write writes the tables of docs/metrics.md.
func (c *catalogue) write(w io.Writer) error {
	var b strings.Builder
	section := ""
	for _, e := range c.entries {
		if e.section != section {
			section = e.section
			fmt.Fprintf(&b, "\n### %s\n\n| metric | type | labels | |\n|---|---|---|---|\n", section)
		}
		labels := ""
		if len(e.labels) > 0 {
			labels = "`" + strings.Join(e.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.name, e.kind, labels, e.help)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
