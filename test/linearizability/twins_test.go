package linearizability

import (
	"slices"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

type events = []history.Event

const (
	granted   = history.Granted
	rReleased = history.EndReleased
	rLapsed   = history.EndLapsed
)

// twins are histories by rule: one that the contract allows, and one that differs in
// what the rule forbids. The second must be found by the rule that is named.
var twins = []struct {
	name      string
	rule      history.Rule
	good, bad events
}{
	{"nobody else while it is pending", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), waits(2, 2, 3, 1)},
		events{grant(1, 0, 1, 5, 1), grant(2, 2, 3, 7, 2, after(rLapsed, 5))}},
	{"a deadline does not come early", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(10)), grant(2, 9.9, 10, 7, 2, after(rLapsed, 5))},
		events{grant(1, 0, 1, 5, 1, ttl(10)), grant(2, 9.8, 9.9, 7, 2, after(rLapsed, 5))}},
	{"nor before what was promised", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, until(10), ttl(0)), grant(2, 8, 10.1, 7, 2, after(rLapsed, 5))},
		events{grant(1, 0, 1, 5, 1, until(10), ttl(0)), grant(2, 8, 9, 7, 2, after(rLapsed, 5))}},
	{"nobody is promised more than was asked for", Late,
		events{grant(1, 0, 3, 5, 1, ttl(10), until(12.9))},
		events{grant(1, 0, 3, 5, 1, ttl(10), until(13.1))}},
	{"clocks differ by a thousandth at most", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(1000)), grant(2, 998, 999.5, 7, 2, after(rLapsed, 5))},
		events{grant(1, 0, 1, 5, 1, ttl(1000)), grant(2, 997, 998.5, 7, 2, after(rLapsed, 5))}},
	{"an extension moves the deadline", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(10)), event(history.Extended, 1, 5, 6, ttl(10)), grant(2, 14, 15, 9, 2, after(rLapsed, 5))},
		events{grant(1, 0, 1, 5, 1, ttl(10)), event(history.Extended, 1, 5, 6, ttl(10)), grant(2, 13, 14, 9, 2, after(rLapsed, 5))}},
	{"an extension in the lapse makes the holder again", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(10)), event(history.Free, 0, 12, 13, num(1), shows(history.StateLapsed)),
			event(history.Extended, 1, 14, 15, ttl(10)), waits(2, 16, 17, 1)},
		events{grant(1, 0, 1, 5, 1, ttl(10)), event(history.Free, 0, 12, 13, num(1), shows(history.StateLapsed)), waits(2, 16, 17, 1)}},
	{"held is in doubt after the deadline", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(10), hold), event(history.InDoubt, 2, 12, 13)},
		events{grant(1, 0, 1, 5, 1, ttl(10), hold), grant(2, 12, 13, 7, 2, after(rLapsed, 5))}},
	{"and not before", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(10), hold), event(history.InDoubt, 2, 9, 10)},
		events{grant(1, 0, 1, 5, 1, ttl(10), hold), event(history.InDoubt, 2, 8, 9)}},
	{"in doubt has no end", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(10), hold, retention(10)), event(history.InDoubt, 0, 99, 100)},
		events{grant(1, 0, 1, 5, 1, ttl(10), hold, retention(10)), event(history.Missing, 0, 99, 100)}},
	{"another fingerprint is refused", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, print("a")), refused(granted, 2, 2, 3, "FINGERPRINT_MISMATCH", print("b"))},
		events{grant(1, 0, 1, 5, 1, print("a")), waits(2, 2, 3, 1, print("b"))}},
	{"before anything else", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, print("a")), commits(1, 2, 3, 9), refused(granted, 1, 4, 5, "FINGERPRINT_MISMATCH", print("b"))},
		events{grant(1, 0, 1, 5, 1, print("a")), commits(1, 2, 3, 9), replays(1, 4, 5, 9, print("b"))}},
	{"the same fingerprint is not", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, print("a")), waits(2, 2, 3, 1, print("a"))},
		events{grant(1, 0, 1, 5, 1, print("a")), refused(granted, 2, 2, 3, "FINGERPRINT_MISMATCH", print("a"))}},
	{"a fingerprint dies with the release", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, print("a")), event(history.Released, 1, 2, 3), grant(2, 4, 5, 8, 2, print("b"), after(rReleased, 5))},
		events{grant(1, 0, 1, 5, 1, print("a")), event(history.Released, 1, 2, 3), refused(granted, 2, 4, 5, "FINGERPRINT_MISMATCH", print("b"))}},
	{"the holder gets its own grant again", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), grant(1, 2, 3, 5, 1, repeated)},
		events{grant(1, 0, 1, 5, 1), waits(1, 2, 3, 1)}},
	{"and the same fence", history.RepeatedFence,
		events{grant(1, 0, 1, 5, 1), grant(1, 2, 3, 5, 1, repeated)},
		events{grant(1, 0, 1, 5, 1), grant(1, 2, 3, 6, 1, repeated)}},
	{"which an order shows as well", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), grant(1, 2, 3, 5, 1, repeated)},
		events{grant(1, 0, 1, 5, 1), grant(1, 2, 3, 6, 1, repeated)}},
	{"what is promised with it counts", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(0), until(5)), grant(1, 2, 3, 5, 1, ttl(0), until(10), repeated), grant(2, 9, 10.1, 7, 2, after(rLapsed, 5))},
		events{grant(1, 0, 1, 5, 1, ttl(0), until(5)), grant(1, 2, 3, 5, 1, ttl(0), until(10), repeated), grant(2, 8, 9, 7, 2, after(rLapsed, 5))}},
	{"only one of two deliveries is the first", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, repeated), grant(1, 0, 3, 5, 1)},
		events{grant(1, 0, 1, 5, 1), grant(1, 2, 3, 5, 1)}},
	{"what is repeated came before", NotLinearizable,
		events{event(granted, 1, 0, 1, unknown), grant(1, 2, 3, 5, 1, repeated)},
		events{grant(1, 2, 3, 5, 1, repeated)}},
	{"an attempt that has ended is not granted again", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), event(history.Ended, 1, 4, 5)},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), grant(1, 4, 5, 8, 2, after(rReleased, 5))}},
	{"an attempt that lapsed has ended", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5)), event(history.Ended, 1, 6, 7)},
		events{grant(1, 0, 1, 5, 1, ttl(50)), event(history.Ended, 1, 6, 7)}},
	{"nobody is told that it ended without having begun", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(granted, 2, 0, 1, unknown), event(history.Released, 1, 2, 3), event(history.Ended, 2, 120, 121)},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), event(history.Ended, 2, 120, 121)}},
	{"who was told pending was not the holder", NotLinearizable,
		events{event(granted, 1, 0, 1, unknown), event(granted, 2, 0, 1, unknown), waits(1, 2, 3, 1)},
		events{event(granted, 1, 0, 1, unknown), waits(1, 2, 3, 1)}},
	{"committed stays", history.LostCommit,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), replays(2, 4, 5, 9)},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), waits(2, 4, 5, 1)}},
	{"as it was committed", history.WrongReplay,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), replays(2, 4, 5, 9)},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), replays(2, 4, 5, 8)}},
	{"by an order as well", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), replays(2, 4, 5, 9), event(history.Replayed, 0, 6, 7, body(9), num(1))},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), replays(2, 4, 5, 9), event(history.Replayed, 0, 6, 7, body(8), num(1))}},
	{"it is not replayed before it was sent", history.WrongReplay,
		events{grant(1, 0, 1, 5, 1), replays(2, 2, 3.5, 9), commits(1, 3, 4, 9)},
		events{grant(1, 0, 1, 5, 1), replays(2, 2, 2.5, 9), commits(1, 3, 4, 9)}},
	{"a commit that was late says so", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5)), commits(1, 6, 7, 9, late)},
		events{grant(1, 0, 1, 5, 1, ttl(50)), commits(1, 6, 7, 9, late)}},
	{"a commit after somebody else was admitted", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5)), grant(2, 6, 7, 7, 2, after(rLapsed, 5)), refused(history.Committed, 1, 8, 9, "RESERVATION_LOST")},
		events{grant(1, 0, 1, 5, 1, ttl(5)), grant(2, 6, 7, 7, 2, after(rLapsed, 5)), commits(1, 8, 9, 9)}},
	{"the first of two commits stands", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), refused(history.Committed, 1, 4, 5, "COMMIT_CONFLICT", body(8))},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), commits(1, 4, 5, 8)}},
	{"the same commit does not conflict", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), commits(1, 4, 5, 9, repeated)},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), refused(history.Committed, 1, 4, 5, "COMMIT_CONFLICT", body(9))}},
	{"a release frees", history.LostRelease,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), grant(2, 4, 5, 8, 2, after(rReleased, 5))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), waits(2, 4, 5, 1)}},
	{"a committed key is not released", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), refused(history.Released, 1, 4, 5, "ALREADY_COMMITTED")},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), event(history.Released, 1, 4, 5)}},
	{"a released key is not committed", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), refused(history.Committed, 1, 4, 5, "ALREADY_RELEASED", body(9))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), commits(1, 4, 5, 9)}},
	{"a released key is not extended", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), refused(history.Extended, 1, 4, 5, "ALREADY_RELEASED")},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), event(history.Extended, 1, 4, 5, ttl(10))}},
	{"a committed key is not extended", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), refused(history.Extended, 1, 4, 5, "ALREADY_COMMITTED")},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), event(history.Extended, 1, 4, 5, ttl(10))}},
	{"the next is told how the one before ended", history.LostRelease,
		events{grant(1, 0, 1, 5, 1, ttl(3)), event(history.Released, 1, 2, 3), grant(2, 4, 5, 8, 2, after(rReleased, 5))},
		events{grant(1, 0, 1, 5, 1, ttl(3)), event(history.Released, 1, 2, 3), grant(2, 4, 5, 8, 2, after(rLapsed, 5))}},
	{"and for what reason", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3, note("so")), grant(2, 4, 5, 8, 2, after(rReleased, 5), note("so"))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3, note("so")), grant(2, 4, 5, 8, 2, after(rReleased, 5), note("not so"))}},
	{"and its fence", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(3)), grant(2, 4, 5, 8, 2, after(rLapsed, 5))},
		events{grant(1, 0, 1, 5, 1, ttl(3)), grant(2, 4, 5, 8, 2, after(rLapsed, 4))}},
	{"fences grow", history.FenceOrder,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), grant(2, 4, 5, 8, 2, after(rReleased, 5))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), grant(2, 4, 5, 4, 2, after(rReleased, 5))}},
	{"in doubt is not extended", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 2, 6, 7), refused(history.Extended, 1, 8, 9, "RESERVATION_LAPSED")},
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 2, 6, 7), event(history.Extended, 1, 8, 9, ttl(10))}},
	{"in doubt is committed by its owner", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 2, 6, 7), commits(1, 8, 9, 9, late), replays(2, 10, 11, 9)},
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 2, 6, 7), commits(1, 8, 9, 9, late), event(history.InDoubt, 2, 10, 11)}},
	{"what is settled as applied is replayed", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 0, 6, 7, revision(6)),
			event(history.Resolved, 0, 8, 9, revision(6), applied, body(9)), replays(2, 10, 11, 9)},
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 0, 6, 7, revision(6)),
			event(history.Resolved, 0, 8, 9, revision(6), applied, body(9)), grant(2, 10, 11, 9, 2, after(rReleased, 5))}},
	{"what is settled as not applied is free", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 0, 6, 7, revision(6)),
			event(history.Resolved, 0, 8, 9, revision(6), note("no")), grant(2, 10, 11, 9, 2, after(rReleased, 5), note("no"))},
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.InDoubt, 0, 6, 7, revision(6)),
			event(history.Resolved, 0, 8, 9, revision(6), note("no")), event(history.InDoubt, 2, 10, 11)}},
	{"what has changed since is not settled", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5)), event(history.Free, 0, 6, 7, num(1), revision(6), shows(history.StateLapsed)),
			event(history.Extended, 1, 8, 9, ttl(5)), refused(history.Resolved, 0, 15, 16, "REVISION_MISMATCH", revision(6))},
		events{grant(1, 0, 1, 5, 1, ttl(5)), event(history.Free, 0, 6, 7, num(1), revision(6), shows(history.StateLapsed)),
			event(history.Extended, 1, 8, 9, ttl(5)), event(history.Resolved, 0, 15, 16, revision(6))}},
	{"what is pending is not settled", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), refused(history.Resolved, 0, 2, 3, "NOT_IN_DOUBT", revision(5))},
		events{grant(1, 0, 1, 5, 1), event(history.Resolved, 0, 2, 3, revision(5))}},
	{"the same settlement again is fine, another is not", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.Resolved, 0, 8, 9, revision(6), applied, body(9)),
			event(history.Resolved, 0, 10, 11, revision(6), applied, body(9)), refused(history.Resolved, 0, 12, 13, "NOT_IN_DOUBT", revision(6))},
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.Resolved, 0, 8, 9, revision(6), applied, body(9)),
			event(history.Resolved, 0, 10, 11, revision(6))}},
	{"nothing is settled where nothing is", NotLinearizable,
		events{refused(history.Resolved, 0, 0, 1, "RESERVATION_NOT_FOUND", revision(5))},
		events{event(history.Resolved, 0, 0, 1, revision(5))}},
	{"a purge takes force while it is pending", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), refused(history.Purged, 0, 2, 3, "NOT_PURGEABLE", revision(5))},
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, revision(5))}},
	{"what is purged is gone", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, named(5), force), grant(2, 4, 5, 7, 1),
			refused(history.Committed, 1, 6, 7, "RESERVATION_LOST", body(9))},
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, named(5), force), waits(2, 4, 5, 1)}},
	{"its fence stays used", history.FenceOrder,
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, named(5), force), grant(2, 4, 5, 7, 1)},
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, named(5), force), grant(2, 4, 5, 3, 1)}},
	{"and its attempt", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, named(5), force), event(history.Ended, 1, 4, 5)},
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, named(5), force), grant(1, 4, 5, 7, 1)}},
	{"a purge by fence is for who holds it", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), refused(history.Purged, 0, 4, 5, "NOT_PURGEABLE", named(5), force),
			event(history.Free, 0, 6, 7, num(1))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), event(history.Purged, 0, 4, 5, named(5), force)}},
	{"a purge by another fence", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), refused(history.Purged, 0, 4, 5, "REVISION_MISMATCH", named(4), force), waits(2, 6, 7, 1)},
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 4, 5, named(4), force)}},
	{"a purge by the right fence is not refused", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), refused(history.Purged, 0, 4, 5, "NOT_PURGEABLE", named(5))},
		events{grant(1, 0, 1, 5, 1), refused(history.Purged, 0, 4, 5, "REVISION_MISMATCH", named(5), force)}},
	{"what is committed is purged without force", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), event(history.Purged, 0, 4, 5, revision(7)), event(history.Missing, 0, 6, 7)},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), refused(history.Purged, 0, 4, 5, "NOT_PURGEABLE", revision(7))}},
	{"what is gone is purged again", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, revision(5), force), event(history.Purged, 0, 4, 5, revision(5))},
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, revision(5), force), refused(history.Purged, 0, 4, 5, "REVISION_MISMATCH", revision(5))}},
	{"a purge may be the one without an answer", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, revision(5), force, unknown), event(history.Missing, 0, 6, 7)},
		events{grant(1, 0, 1, 5, 1), event(history.Purged, 0, 2, 3, revision(5), unknown), event(history.Missing, 0, 6, 7)}},
	{"a settlement may be the one without an answer", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.Resolved, 0, 8, 9, revision(6), applied, body(9), unknown), replays(2, 10, 11, 9)},
		events{grant(1, 0, 1, 5, 1, ttl(5), hold), event(history.Resolved, 0, 8, 9, revision(6), body(9), unknown), replays(2, 10, 11, 9)}},
	{"the fingerprint that is shown is the record's", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, print("a")), waits(0, 2, 3, 1, print("a"))},
		events{grant(1, 0, 1, 5, 1, print("a")), waits(0, 2, 3, 1, print("b"))}},
	{"and so is the fence", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), waits(0, 2, 3, 1, named(5))},
		events{grant(1, 0, 1, 5, 1), waits(0, 2, 3, 1, named(6))}},
	{"another revision is not purged", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), event(history.Replayed, 0, 4, 5, body(9), revision(7)),
			refused(history.Purged, 0, 6, 7, "REVISION_MISMATCH", revision(5)), replays(2, 8, 9, 9)},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), event(history.Replayed, 0, 4, 5, body(9), revision(7)),
			event(history.Purged, 0, 6, 7, revision(5))}},
	{"what is committed is gone when its retention is over", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, retention(10)), commits(1, 2, 3, 9), replays(3, 11, 11.5, 9), grant(2, 12, 13, 8, 1)},
		events{grant(1, 0, 1, 5, 1, retention(10)), commits(1, 2, 3, 9), replays(3, 11, 11.5, 9), grant(2, 11, 11.9, 8, 1)}},
	{"the retention of a commit is its own", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, retention(10)), commits(1, 2, 3, 9, retention(20)), grant(2, 22, 23, 8, 1)},
		events{grant(1, 0, 1, 5, 1, retention(10)), commits(1, 2, 3, 9, retention(20)), grant(2, 20, 21, 8, 1)}},
	{"what is released stays ten minutes at least", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, retention(10)), event(history.Released, 1, 2, 3), grant(2, 602, 603, 8, 1)},
		events{grant(1, 0, 1, 5, 1, retention(10)), event(history.Released, 1, 2, 3), grant(2, 590, 600, 8, 1)}},
	{"what lapsed is gone a retention later", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), retention(10)), event(history.Missing, 0, 15, 16)},
		events{grant(1, 0, 1, 5, 1, ttl(5), retention(10)), event(history.Missing, 0, 14, 14.9)}},
	{"what is gone does not come back", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, ttl(5), retention(10)), event(history.Free, 0, 15, 16, num(1)), event(history.Missing, 0, 15, 17)},
		events{grant(1, 0, 1, 5, 1, ttl(5), retention(10)), event(history.Missing, 0, 15, 16), event(history.Free, 0, 17, 18, num(1))}},
	{"an id is forgotten after ten minutes and eight others", NotLinearizable, forgotten(700), forgotten(500)},
	{"what exists is found", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), waits(0, 2, 3, 1)},
		events{grant(1, 0, 1, 5, 1), event(history.Missing, 0, 2, 3)}},
	{"a read is not stale", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), event(history.Free, 0, 4, 5, num(1), shows(history.StateReleased))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 3), waits(0, 4, 5, 1)}},
	{"two reads do not go backwards", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 9), waits(0, 3, 4, 1), event(history.Free, 0, 5, 6, num(1))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 2, 9), event(history.Free, 0, 3, 4, num(1)), waits(0, 5, 6, 1)}},
	{"a revision does not go backwards", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Pending, 0, 2, 3, num(1), revision(5)), commits(1, 4, 5, 9),
			event(history.Replayed, 0, 6, 7, body(9), revision(7))},
		events{grant(1, 0, 1, 5, 1), event(history.Pending, 0, 2, 3, num(1), revision(5)), commits(1, 4, 5, 9),
			event(history.Replayed, 0, 6, 7, body(9), revision(5))}},
	{"a record changes its revision only by changing", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Pending, 0, 2, 3, num(1), revision(5)), event(history.Extended, 1, 2, 3, ttl(90), unknown),
			event(history.Pending, 0, 6, 7, num(1), revision(8))},
		events{grant(1, 0, 1, 5, 1), event(history.Pending, 0, 2, 3, num(1), revision(5)), event(history.Pending, 0, 6, 7, num(1), revision(8))}},
	{"what is unknown may have been carried out, once", history.LostGrant,
		events{event(granted, 1, 0, 1, unknown, ttl(5)), grant(2, 8, 9, 7, 2, after(rLapsed, 5))},
		events{grant(2, 8, 9, 7, 2, after(rLapsed, 5))}},
	{"each once", NotLinearizable,
		events{event(granted, 1, 0, 1, unknown, ttl(5)), event(granted, 3, 0, 1, unknown, ttl(5)), grant(2, 11, 12, 9, 3, after(rLapsed, 7))},
		events{event(granted, 1, 0, 1, unknown, ttl(5)), grant(2, 11, 12, 9, 3, after(rLapsed, 7))}},
	{"and its window counts", NotLinearizable,
		events{event(granted, 1, 0, 1, unknown, ttl(5)), event(granted, 3, 0, 1, unknown, ttl(5)), grant(2, 9, 10, 9, 3, after(rLapsed, 7))},
		events{event(granted, 1, 0, 1, unknown, ttl(5)), event(granted, 3, 0, 1, unknown, ttl(5)), grant(2, 8, 9, 9, 3, after(rLapsed, 7))}},
	{"it may never be carried out, and much later", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9, unknown), waits(2, 50, 51, 1), replays(2, 60, 61, 9)},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9, unknown), replays(2, 50, 51, 9), waits(2, 60, 61, 1)}},
	{"not before it was sent", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 6, 7, unknown), grant(2, 7, 8, 8, 2, after(rReleased, 5))},
		events{grant(1, 0, 1, 5, 1), event(history.Released, 1, 6, 7, unknown), grant(2, 4, 5, 8, 2, after(rReleased, 5))}},
	{"a try before the last may be carried out after the answer", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), waits(2, 3, 4, 1, tries(2), firstSent(2)), event(history.Released, 1, 5, 6),
			grant(3, 120, 121, 9, 3, after(rLapsed, 7))},
		events{grant(1, 0, 1, 5, 1), waits(2, 3, 4, 1), event(history.Released, 1, 5, 6),
			grant(3, 120, 121, 9, 3, after(rLapsed, 7))}},
	{"the try before may be the one that was lost", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), grant(2, 4, 5, 8, 2, after(rReleased, 5)),
			refused(history.Released, 1, 6, 7, "RESERVATION_LOST", tries(2), firstSent(2))},
		events{grant(1, 0, 1, 5, 1), grant(2, 4, 5, 8, 2, after(rReleased, 5)),
			refused(history.Released, 1, 6, 7, "RESERVATION_LOST")}},
	{"a token that is not the record's", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), refused(history.Committed, 2, 2, 3, "RESERVATION_LOST", named(77))},
		events{grant(1, 0, 1, 5, 1), refused(history.Committed, 1, 2, 3, "RESERVATION_LOST", named(5))}},
	{"where there is none", NotLinearizable,
		events{refused(history.Committed, 2, 2, 3, "RESERVATION_NOT_FOUND", named(77))},
		events{grant(1, 0, 1, 5, 1), refused(history.Committed, 1, 2, 3, "RESERVATION_NOT_FOUND", named(5))}},
	{"a response is its identity's", ForeignAnswer,
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), grant(2, 0, 1, 7, 1, principal("q")), commits(2, 2, 3, 8, principal("q")),
			replays(3, 4, 5, 8, principal("q"))},
		events{grant(1, 0, 1, 5, 1), commits(1, 2, 3, 9), grant(2, 0, 1, 7, 1, principal("q")), commits(2, 2, 3, 8, principal("q")),
			replays(3, 4, 5, 9, principal("q"))}},
	{"another principal's key is another record", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), grant(2, 2, 3, 7, 1, principal("q"))},
		events{grant(1, 0, 1, 5, 1), waits(2, 2, 3, 1, principal("q"))}},
	{"an owner is its identity's", ForeignAnswer,
		events{grant(1, 0, 1, 5, 1, owner("a")), waits(2, 2, 3, 1, owner("b"), holder("a"))},
		events{grant(1, 0, 1, 5, 1, owner("a")), waits(2, 2, 3, 1, owner("b"), holder("c"))}},
	{"the owner is the holder", NotLinearizable,
		events{grant(1, 0, 1, 5, 1, owner("a")), waits(2, 2, 3, 1, owner("b"), holder("a"))},
		events{grant(1, 0, 1, 5, 1, owner("a")), waits(2, 2, 3, 1, owner("b"), holder("b"))}},
	{"nobody else is shown the fence", ForeignAnswer,
		events{grant(1, 0, 1, 5, 1), waits(2, 2, 3, 1)},
		events{grant(1, 0, 1, 5, 1), waits(2, 2, 3, 1, named(5))}},
	{"a refusal that was not carried out says nothing", NotLinearizable,
		events{grant(1, 0, 1, 5, 1), refused(history.Committed, 1, 2, 3, "OVERLOADED", body(9)), waits(2, 4, 5, 1)},
		events{grant(1, 0, 1, 5, 1), refused(history.Committed, 1, 2, 3, "OVERLOADED", body(9)), replays(2, 4, 5, 9)}},
}

// forgotten is an attempt that is granted again when nine others have ended after it.
func forgotten(again float64) events {
	all := events{grant(1, 0, 1, 10, 1), event(history.Released, 1, 2, 3)}
	for i := range 9 {
		at, fence := 4+4*float64(i), uint64(13+3*i)
		all = append(all,
			grant(byte(10+i), at, at+1, fence, uint32(2+i), after(rReleased, fence-3)), event(history.Released, byte(10+i), at+2, at+3))
	}
	return append(all, grant(1, again, again+1, 40, 11, after(rReleased, 37)))
}

func TestTwins(t *testing.T) {
	for _, twin := range twins {
		t.Run(twin.name, func(t *testing.T) {
			if found := CheckAll(twin.good); len(found) != 0 {
				t.Errorf("the good one: %v", found)
			}
			found := CheckAll(twin.bad)
			if !slices.ContainsFunc(found, func(v history.Violation) bool { return v.Rule == twin.rule }) {
				t.Errorf("the bad one is not %q: %v", twin.rule, found)
			}
		})
	}
}

// TestLateness: what may be late by a second is not seen two seconds later.
func TestLateness(t *testing.T) {
	options := Options{Lateness: func(_ int, _, _ time.Duration) time.Duration { return time.Second }}
	extended := event(history.Extended, 1, 5, 6, ttl(10))
	histories := []struct {
		name      string
		good, bad events
	}{
		{"pending", events{grant(1, 0, 1, 5, 1, ttl(10)), waits(2, 11.9, 13, 1)},
			events{grant(1, 0, 1, 5, 1, ttl(10)), waits(2, 12.1, 13, 1)}},
		{"extended", events{grant(1, 0, 1, 5, 1, ttl(10)), extended, waits(2, 16.9, 18, 1)},
			events{grant(1, 0, 1, 5, 1, ttl(10)), extended, waits(2, 17.1, 18, 1)}},
		{"perhaps extended", events{grant(1, 0, 1, 5, 1, ttl(10)), event(history.Extended, 1, 5, 6, ttl(10), unknown), waits(2, 17.1, 18, 1)},
			events{grant(1, 0, 1, 5, 1, ttl(10)), event(history.Extended, 1, 18, 19, ttl(10), unknown), waits(2, 17.1, 17.9, 1)}},
		{"committed in time", events{grant(1, 0, 1, 5, 1, ttl(10)), commits(1, 11.9, 13, 9)},
			events{grant(1, 0, 1, 5, 1, ttl(10)), commits(1, 12.1, 13, 9)}},
		{"kept", events{grant(1, 0, 1, 5, 1, ttl(10), retention(10)), commits(1, 2, 3, 9), replays(2, 13.9, 15, 9)},
			events{grant(1, 0, 1, 5, 1, ttl(10), retention(10)), commits(1, 2, 3, 9), replays(2, 14.1, 15, 9)}},
	}
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			if found := Check(h.good, options); len(found) != 0 {
				t.Errorf("the good one: %v", found)
			}
			if found := Check(h.bad, options); len(found) == 0 {
				t.Error("the bad one passes")
			}
			if found := CheckAll(h.bad); len(found) != 0 {
				t.Errorf("without a bound: %v", found)
			}
		})
	}
}
