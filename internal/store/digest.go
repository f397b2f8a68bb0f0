package store

// DigestVersion says what [Store.Digest] is a digest of. It changes whenever the same
// state would come to another digest: where a record is encoded otherwise, too.
const DigestVersion = 1

// Digest returns a 64-bit digest of the applied state, and the position that it is of.
// Two replicas at the same position have the same digest, however their files came
// about; a record that is not the same in every byte makes another. It takes no longer
// in a large state: every record's share is kept up to date (see [contribution]).
//
// It is of what the records' checksums say. That the records in the file are as their
// checksums say is seen when they are read; [Store.StateHash] reads all of them.
func (s *Store) Digest() (uint64, Position) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	h, of := &s.head, s.index.sums()
	digest := uint64(0)
	for _, v := range [...]uint64{
		h.clock.Term, uint64(h.clock.Noted), uint64(h.clock.Now),
		h.counter, h.lastSequence, h.configurationIndex,
		of.records, of.responses, of.digest,
	} {
		digest = mix(digest*0x9e3779b97f4a7c15 + v)
	}
	return digest, h.applied
}

// mix is the finalizer of SplitMix64: one bit more or less changes about half of what
// it returns, and no two numbers come to the same.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
