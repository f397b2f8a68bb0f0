package store

import (
	"errors"
	"time"
)

// Flush returns once everything that was applied when it was called is synced.
func (s *Store) Flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for want := s.updates; s.saved < want; {
		if err := s.usable(); err != nil {
			return err
		}
		s.wake(s.kick)
		s.settled.Wait()
	}
	return s.usable()
}

// flushLoop commits what is gathered: an interval after something was, or at once
// where there is much or somebody waits.
func (s *Store) flushLoop() {
	defer s.flusher.Done()
	for {
		select {
		case <-s.stop:
			return
		case <-s.kick:
		case <-s.dirty:
			if !s.pause() {
				return
			}
		}
		if err := s.flush(); err != nil {
			_ = s.fail(err) // it is in every answer from now on
			return
		}
	}
}

// pause waits for the interval, or less where a flush is wanted. It returns false
// where the store is closed meanwhile.
func (s *Store) pause() bool {
	timer := time.NewTimer(s.config.FlushInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.kick:
	case <-s.stop:
		return false
	}
	return true
}

// flush commits the gathering layer. Whoever reads meanwhile sees it as the flushing
// one.
func (s *Store) flush() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	l := s.freeze()
	if l == nil {
		return nil
	}
	observer := s.config.CommitObserver
	if observer.Before != nil {
		observer.Before()
	}
	err := s.file.commit(l)
	if observer.After != nil {
		observer.After()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.flushing = nil
	s.durable = l.head
	s.saved = l.updates
	s.gathered.Add(-l.bytes)
	s.settled.Broadcast()
	s.mu.Unlock()
	return nil
}

// freeze makes the gathering layer the flushing one and returns it, or nil where
// nothing has changed. The flusher is the only one that replaces s.file's content
// meanwhile, because it holds commit.
func (s *Store) freeze() *layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.updates == s.saved || s.failed != nil {
		return nil
	}
	l := s.gathering
	s.head.sums = s.index.sums()
	l.head, l.updates = s.head, s.updates
	s.flushing, s.gathering = l, newLayer(s.head.lastSequence+1)
	return l
}

// Close makes everything durable, closes the file, and returns what went wrong.
// Calls that come later return [ErrClosed]. Closing again is fine.
func (s *Store) Close() error {
	return s.shut(s.flush)
}

// shut ends the store; last is the last thing that is done to the file.
func (s *Store) shut(last func() error) (err error) {
	s.stopOnce.Do(func() {
		close(s.stop)
		s.EndCopies()
		s.flusher.Wait()
		s.mu.Lock()
		s.closed = true
		failed := s.failed
		s.settled.Broadcast()
		s.mu.Unlock()
		if failed == nil {
			if err := last(); err != nil {
				failed = s.fail(err)
			}
		}
		s.copying.Wait()
		s.retired.Wait()
		err = errors.Join(failed, fileError(s.config.Path, s.file.close()))
	})
	return err
}
