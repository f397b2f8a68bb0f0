package lease

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// The limits of what an owner asks for with a grant, as the contract has them. Whoever is set up to
// ask for the same with every grant learns with these that none would be given, before the first one.
const (
	PendingTTLMin = 100 * time.Millisecond
	PendingTTLMax = 24 * time.Hour

	RetentionMin = time.Second
	RetentionMax = 30 * 24 * time.Hour

	OwnerBytesMax       = 128
	FingerprintBytesMax = 64
)

// CheckPendingTTL reports that nobody may hold a reservation for so long, in the coordinator's words.
func CheckPendingTTL(window time.Duration) error {
	return checkWindow(window, PendingTTLMin, PendingTTLMax)
}

// CheckRetention reports that no record is kept for so long.
func CheckRetention(window time.Duration) error {
	return checkWindow(window, RetentionMin, RetentionMax)
}

func checkWindow(window, least, most time.Duration) error {
	if window < least || window > most {
		return fmt.Errorf("is %v, it must be from %v to %v", window, least, most)
	}
	return nil
}

// CheckOwner reports that no owner may be called so. It does not show it.
func CheckOwner(name string) error {
	switch {
	case len(name) > OwnerBytesMax:
		return fmt.Errorf("is %d bytes long, the limit is %d", len(name), OwnerBytesMax)
	case !utf8.ValidString(name):
		return errors.New("is not valid UTF-8")
	}
	return nil
}

// CheckFingerprint reports that this is no fingerprint.
func CheckFingerprint(fingerprint []byte) error {
	if len(fingerprint) > FingerprintBytesMax {
		return fmt.Errorf("is %d bytes long, the limit is %d", len(fingerprint), FingerprintBytesMax)
	}
	return nil
}
