package httpadmit

import "testing"

// A response begins, outgrows its limit at most once, and ends once; nothing goes out that did not
// flow.
func TestStages(t *testing.T) {
	ways := map[stage]map[event]stage{
		waiting:   {begins: keeping},
		keeping:   {flows: streaming, spills: dropping, returns: kept},
		streaming: {returns: streamed},
		dropping:  {returns: dropped},
	}
	for s := waiting; s <= dropped; s++ {
		for e := begins; e <= returns; e++ {
			func() {
				want, is := ways[s][e]
				defer func() {
					if (recover() == nil) != is {
						t.Errorf("stage %d takes event %d: %v", s, e, !is)
					}
				}()
				if got := s.next(e); got != want {
					t.Errorf("stage %d is %d after event %d", s, got, e)
				}
			}()
		}
		if _, goesOn := ways[s]; s.ended() == goesOn || s.out() != (s == streaming || s == streamed) {
			t.Errorf("stage %d: ended %v, out %v", s, s.ended(), s.out())
		}
	}
}
