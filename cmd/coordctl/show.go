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
		return localError{err: fmt.Errorf("the call was answered, but the result cannot be written: %w", err), called: !c.looks}
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

// text is a cell of a text that somebody chose, quoted as Go quotes it where it could be
// taken for something else: for nothing, for another text that is quoted, or for more
// or less than it is, next to the spaces that columns are parted by.
func text(chosen string) string {
	if chosen == "-" || strings.HasPrefix(chosen, `"`) || strings.TrimSpace(chosen) != chosen || strings.Contains(chosen, "  ") {
		return strconv.Quote(chosen)
	}
	return printable(chosen)
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

// brief is a duration as a person reads it, of one as JSON has it.
func brief(exact string) string {
	d, err := time.ParseDuration(exact)
	switch {
	case err != nil:
		return exact // there is none
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
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

// numbers are "" for none, else such as "0, 2".
func numbers(list []uint32) string {
	texts := make([]string, len(list))
	for i, n := range list {
		texts[i] = fmt.Sprint(n)
	}
	return strings.Join(texts, ", ")
}

// inWords is a name of JSON as people read it.
func inWords(name string) string { return strings.ReplaceAll(name, "_", " ") }

// yes is "" for false.
func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

// enum is the name of an enum's value as the contract has it, without its prefix.
func enum(name fmt.Stringer, prefix string) string { return strings.TrimPrefix(name.String(), prefix) }
