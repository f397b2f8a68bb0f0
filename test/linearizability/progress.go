package linearizability

import "time"

// progress is which of the answered operations are in the order already. It is a function
// of porcupine's own set of them, which a model is not shown: without it, a step would not
// know that it moves time past an answer that is still to come, and the search would follow
// what has no hope. It is a value.
type progress struct {
	first  int // all before it are in the order; it is not
	beyond []uint64
}

// with returns the progress with one more.
func (p progress) with(n int) progress {
	words := make([]uint64, max(len(p.beyond), n/64-p.first/64+1))
	copy(words, p.beyond)
	base := p.first / 64
	words[n/64-base] |= 1 << (n % 64)
	next := p.first
	for next/64-base < len(words) && words[next/64-base]&(1<<(next%64)) != 0 {
		next++
	}
	return progress{first: next, beyond: words[min(next/64-base, len(words)):]}
}

// due is when the first answer came that is still to be explained.
func (m *model) due(p progress) time.Duration {
	if p.first < len(m.answers) {
		return m.answers[p.first]
	}
	return m.end
}
