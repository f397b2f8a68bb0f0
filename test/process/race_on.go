//go:build race

package process

// raceDetector says whether this test binary, and so the programs, have it.
const raceDetector = true
