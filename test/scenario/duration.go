package scenario

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Duration is a length of time written as Go writes it, plus d (24 h) and y (365 d).
type Duration time.Duration

var (
	durationForm = regexp.MustCompile(`^-?([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h|d|y))+$`)
	durationDays = regexp.MustCompile(`^([0-9]+)(y|d)`)
)

// ParseDuration reads a duration; one that 64 bits of nanoseconds cannot hold is an
// error.
func ParseDuration(text string) (time.Duration, error) {
	if !durationForm.MatchString(text) {
		return 0, fmt.Errorf("scenario: %q is not a duration", text)
	}
	rest, negative := strings.CutPrefix(text, "-")
	var total time.Duration
	for {
		match := durationDays.FindStringSubmatch(rest)
		if match == nil {
			break
		}
		unit := 24 * time.Hour
		if match[2] == "y" {
			unit *= 365
		}
		count, err := strconv.ParseInt(match[1], 10, 64)
		if err != nil || count > int64(math.MaxInt64-total)/int64(unit) {
			return 0, fmt.Errorf("scenario: %q is too long", text)
		}
		total += time.Duration(count) * unit
		rest = rest[len(match[0]):]
	}
	if rest != "" {
		clock, err := time.ParseDuration(rest)
		if err != nil || clock > math.MaxInt64-total {
			return 0, fmt.Errorf("scenario: %q is not a duration", text)
		}
		total += clock
	}
	if negative {
		total = -total
	}
	return total, nil
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (d *Duration) UnmarshalYAML(node *yaml.Node) error {
	parsed, err := ParseDuration(node.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	*d = Duration(parsed)
	return nil
}
