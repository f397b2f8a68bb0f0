package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// show writes one result: value as JSON, or rows as a table without a heading. A row
// whose last cell is empty is left out.
func (c *control) show(value any, rows [][]string) error {
	if c.output == "json" {
		return c.wrote(writeJSON(c.stdout, value))
	}
	kept := rows[:0:0]
	for _, row := range rows {
		if row[len(row)-1] != "" {
			kept = append(kept, row)
		}
	}
	return c.wrote(writeTable(c.stdout, nil, kept))
}

// showTable is [control.show] for rows of equal standing under a heading.
func (c *control) showTable(value any, heading []string, rows [][]string) error {
	if c.output == "json" {
		return c.wrote(writeJSON(c.stdout, value))
	}
	return c.wrote(writeTable(c.stdout, heading, rows))
}

func (c *control) wrote(err error) error {
	if err != nil {
		return localError{fmt.Errorf("writing the result: %w", err)}
	}
	return nil
}

func writeTable(w io.Writer, heading []string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if heading != nil {
		rows = append([][]string{heading}, rows...)
	}
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable(cell)
		}
		if _, err := fmt.Fprintln(table, strings.TrimRight(strings.Join(cells, "\t"), "\t")); err != nil {
			return err
		}
	}
	return table.Flush()
}

// printable keeps a cell in its place: what a terminal would act upon, or would not
// show, is quoted as Go quotes it.
func printable(cell string) string {
	if utf8.ValidString(cell) && strings.IndexFunc(cell, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return cell
	}
	return strconv.Quote(cell)
}

// duration is "" for a duration that is absent.
func duration(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return d.AsDuration().String()
}

// rounded is [duration] as a person reads it.
func rounded(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	switch exact := d.AsDuration(); {
	case exact >= time.Minute:
		return exact.Round(time.Second).String()
	case exact >= time.Second:
		return exact.Round(10 * time.Millisecond).String()
	default:
		return exact.Round(time.Microsecond).String()
	}
}

// moment is "" for a time that is absent.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339Nano)
}

// number is "" for 0, where that stands for nothing.
func number[N uint32 | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

// yes is "" for false.
func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

// enum is the name of an enum's value as the contract has it, without its prefix.
func enum(name fmt.Stringer, prefix string) string { return strings.TrimPrefix(name.String(), prefix) }
