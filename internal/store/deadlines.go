package store

import "github.com/atmostonce/coordinator/internal/admission"

// deadlines orders the slots that have an alarm by (alarm, sequence). It is a heap
// with four children to a node: half as deep as a binary one, and what is compared
// at each level lies close together. Each slot knows its position.
type deadlines struct {
	slots  *segments[slot]
	order  segments[uint32]
	length uint32
}

const heapWidth = 4

func (h *deadlines) less(a, b uint32) bool {
	sa, sb := h.slots.at(a), h.slots.at(b)
	if sa.alarm != sb.alarm {
		return sa.alarm < sb.alarm
	}
	return sa.sequence < sb.sequence
}

// place gives the slot its alarm and puts it where it belongs.
func (h *deadlines) place(i uint32, alarm admission.Time) {
	s := h.slots.at(i)
	s.alarm = alarm
	switch {
	case alarm == admission.Never:
		h.remove(i)
	case s.heap == notInHeap:
		h.order.grow(h.length + 1)
		h.length++
		h.up(h.length-1, i)
	default:
		h.fix(s.heap, i)
	}
}

// remove takes the slot out, if it is in.
func (h *deadlines) remove(i uint32) {
	position := h.slots.at(i).heap
	if position == notInHeap {
		return
	}
	h.slots.at(i).heap = notInHeap
	h.length--
	if position < h.length {
		h.fix(position, *h.order.at(h.length))
	}
}

// fix puts slot i, which is or goes at the position, where it belongs.
func (h *deadlines) fix(position, i uint32) {
	if position > 0 && h.less(i, *h.order.at((position - 1) / heapWidth)) {
		h.up(position, i)
		return
	}
	h.down(position, i)
}

func (h *deadlines) up(position, i uint32) {
	for position > 0 {
		parent := (position - 1) / heapWidth
		above := *h.order.at(parent)
		if !h.less(i, above) {
			break
		}
		h.put(position, above)
		position = parent
	}
	h.put(position, i)
}

func (h *deadlines) down(position, i uint32) {
	for {
		first := uint64(position)*heapWidth + 1
		if first >= uint64(h.length) {
			break
		}
		least := uint32(first)
		end := uint32(min(first+heapWidth, uint64(h.length)))
		for child := least + 1; child < end; child++ {
			if h.less(*h.order.at(child), *h.order.at(least)) {
				least = child
			}
		}
		below := *h.order.at(least)
		if !h.less(below, i) {
			break
		}
		h.put(position, below)
		position = least
	}
	h.put(position, i)
}

func (h *deadlines) put(position, i uint32) {
	*h.order.at(position) = i
	h.slots.at(i).heap = position
}

// earliest returns the slot that is due first, or 0.
func (h *deadlines) earliest() uint32 {
	if h.length == 0 {
		return 0
	}
	return *h.order.at(0)
}

// due returns at most most slots whose alarm is not after now, in order. It looks
// only at what it returns and at the children of that.
func (h *deadlines) due(now admission.Time, most int) []uint32 {
	var found []uint32
	var candidates []uint32 // positions, a binary heap
	offer := func(position uint64) {
		if position < uint64(h.length) && h.slots.at(*h.order.at(uint32(position))).alarm <= now {
			candidates = h.push(candidates, uint32(position))
		}
	}
	offer(0)
	for len(candidates) > 0 && len(found) < most {
		var position uint32
		position, candidates = h.pop(candidates)
		found = append(found, *h.order.at(position))
		for child := range uint64(heapWidth) {
			offer(uint64(position)*heapWidth + 1 + child)
		}
	}
	return found
}

func (h *deadlines) before(a, b uint32) bool { return h.less(*h.order.at(a), *h.order.at(b)) }

func (h *deadlines) push(candidates []uint32, position uint32) []uint32 {
	candidates = append(candidates, position)
	for i := len(candidates) - 1; i > 0 && h.before(candidates[i], candidates[(i-1)/2]); i = (i - 1) / 2 {
		candidates[i], candidates[(i-1)/2] = candidates[(i-1)/2], candidates[i]
	}
	return candidates
}

func (h *deadlines) pop(candidates []uint32) (uint32, []uint32) {
	first, last := candidates[0], len(candidates)-1
	candidates[0] = candidates[last]
	candidates = candidates[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.before(candidates[child], candidates[least]) {
				least = child
			}
		}
		if least == i {
			return first, candidates
		}
		candidates[i], candidates[least] = candidates[least], candidates[i]
		i = least
	}
}
