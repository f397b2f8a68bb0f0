package membership

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/peer"
)

const (
	// FileName is the file in the data directory that says whose it is.
	FileName = "node.json"
	// ShardsDirName is the directory beside it that holds the shards.
	ShardsDirName = "shards"
	// ShardsMax is how many shards a cluster may have.
	ShardsMax = 1024

	fileFormat   = 1
	fileBytesMax = 1 << 20
)

// State is the content of node.json.
type State struct {
	Format      int    `json:"format"`
	NodeID      string `json:"node_id"`
	Incarnation string `json:"incarnation"`
	Shards      int    `json:"shards"`
	// Starts is how many processes have used the directory so far; see [File.CountStart].
	// Files from before it was counted have none, which is 0.
	Starts uint64 `json:"starts,omitempty"`
	// Superseded says that another process ran under the same identity and is newer: it
	// acknowledged what this directory lacks. Empty: none is known of.
	Superseded string `json:"superseded,omitempty"`
	// ClusterID is empty until the node belongs to a cluster.
	ClusterID string `json:"cluster_id,omitempty"`
	// Founder says that this node begins the shards' logs.
	Founder bool `json:"founder,omitempty"`
	// ShardsCreated says that every shard has been made: one that is missing from then
	// on has been lost.
	ShardsCreated bool `json:"shards_created,omitempty"`
	// Members are those of the cluster when last looked at, this node included.
	Members []peer.Member `json:"members,omitempty"`
}

// ID returns the server id of the node.
func (s *State) ID() raft.ServerID { return peer.ServerID(s.NodeID, s.Incarnation) }

// member returns the member with that server id, or nil.
func (s *State) member(id raft.ServerID) *peer.Member {
	for i := range s.Members {
		if s.Members[i].ID() == id {
			return &s.Members[i]
		}
	}
	return nil
}

// check reports what cannot be in a node.json.
func (s *State) check() error {
	if s.Format != fileFormat {
		return laterError{fmt.Errorf("is of format %d; this program knows format %d", s.Format, fileFormat)}
	}
	wrong := peer.CheckNodeName(s.NodeID)
	if wrong == nil {
		wrong = peer.CheckIncarnation(s.Incarnation)
	}
	if wrong == nil && s.ClusterID != "" {
		wrong = peer.CheckClusterID(s.ClusterID)
	}
	for i := 0; wrong == nil && i < len(s.Members); i++ {
		_, _, wrong = peer.SplitServerID(s.Members[i].ID())
	}
	if wrong != nil {
		return fmt.Errorf("says what cannot be: %w", wrong)
	}
	if s.Shards < 1 || s.Shards > ShardsMax {
		return fmt.Errorf("says %d shards; 1 to %d are possible", s.Shards, ShardsMax)
	}
	if s.ClusterID == "" {
		if s.Founder || s.ShardsCreated || len(s.Members) > 0 {
			return errors.New("names no cluster, but what belongs to one")
		}
		return nil
	}
	if s.member(s.ID()) == nil {
		return fmt.Errorf("does not count this node, %s, among the cluster's members", s.ID())
	}
	return nil
}

// stored is a State as it is in the file. Numbers and addresses look right with a flipped
// bit in them, too, so there is a checksum; files from before it have none.
type stored struct {
	State
	Checksum string `json:"checksum,omitempty"`
}

func (s stored) text() []byte {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	return append(text, '\n')
}

// checksum is that of the text without it.
func (s stored) checksum() string {
	s.Checksum = ""
	return fmt.Sprintf("%08x", crc32.Checksum(s.text(), crc32.MakeTable(crc32.Castagnoli)))
}

func encode(state *State) []byte {
	s := stored{State: *state}
	s.Checksum = s.checksum()
	return s.text()
}

// laterError says that a newer version of this program may have written a file: it need not be
// damaged.
type laterError struct{ error }

// decode says of what is no content of a node.json what it is.
func decode(content []byte) (State, error) {
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	var (
		s       stored
		syntax  *json.SyntaxError
		another *json.UnmarshalTypeError
	)
	switch err := decoder.Decode(&s); {
	case errors.Is(err, io.EOF):
		return State{}, errors.New("is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return State{}, fmt.Errorf("ends early, after %d bytes", len(content))
	case errors.As(err, &syntax):
		return State{}, fmt.Errorf("is no JSON from byte %d on", syntax.Offset)
	case errors.As(err, &another) && another.Field == "":
		return State{}, errors.New("is JSON of something else")
	case errors.As(err, &another):
		return State{}, fmt.Errorf("holds in %q what cannot be there", strings.TrimPrefix(another.Field, "State."))
	case err != nil:
		return State{}, laterError{fmt.Errorf("holds what this program does not know (%s)", strings.TrimPrefix(err.Error(), "json: "))}
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return State{}, errors.New("does not end where it should")
	}
	if err := s.check(); err != nil {
		return State{}, err
	}
	if sum := s.checksum(); s.Checksum != "" && s.Checksum != sum {
		return State{}, fmt.Errorf("has the checksum %s, and says %s", sum, s.Checksum)
	}
	return s.State, nil
}

// File is a node's node.json. Its methods may be called from any goroutine.
type File struct {
	path string

	// writing is held over a change, for as long as the disk takes.
	writing sync.Mutex

	// mu is not held while anything waits for the disk: others hear of this node
	// meanwhile, by what is on it.
	mu    sync.Mutex
	state State
	at    places
}

// places are where the file is.
type places struct {
	file   disk.Place // that holds the state
	coming disk.Place // that is taking its place; zero: none
}

// Open reads the node.json of a data directory, or makes one where the directory is
// empty. The node id must be the one in it; shards must be the number in it, or 0 for
// whatever it is; before there is a cluster it may still be another. Where the file is
// made, 0 means shardsDefault.
//
// The caller holds the directory's lock.
func Open(dir, nodeID string, shards, shardsDefault int) (*File, error) {
	f := &File{path: filepath.Join(dir, FileName)}
	content, file, err := readFile(f.path)
	f.at.file = file
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := checkEmpty(dir); err != nil {
			return nil, err
		}
		if shards == 0 {
			shards = shardsDefault
		}
		state := State{Format: fileFormat, NodeID: nodeID, Incarnation: random(), Shards: shards}
		if err := state.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
		if err := f.write(&state); err != nil {
			return nil, err
		}
		return f, nil
	case err != nil:
		return nil, err
	}
	if f.state, err = decode(content); err != nil {
		damage := fmt.Errorf("%s is damaged, or of another program: it %w", f.path, err)
		if later := (laterError{}); errors.As(err, &later) {
			return nil, damage
		}
		return nil, disk.Advise(damage)
	}
	if f.state.Superseded != "" {
		return nil, fmt.Errorf("data directory %s lacks what another process acknowledged that ran under the same identity (%s), and is not used again. "+
			"If that process is to go on, delete this directory; otherwise end it too, start with an empty directory and run `coordctl members replace %s`",
			dir, f.state.Superseded, f.state.NodeID)
	}
	if f.state.NodeID != nodeID {
		return nil, fmt.Errorf("data directory %s belongs to node %q, and this node is %q (%s)", dir, f.state.NodeID, nodeID, f.path)
	}
	switch {
	case shards == 0 || f.state.Shards == shards:
	case f.state.ClusterID == "":
		// There is no cluster yet whose number it could be.
		state := f.state
		state.Shards = shards
		if err := state.check(); err != nil {
			return nil, fmt.Errorf("%s: it then %w", f.path, err)
		}
		if err := f.write(&state); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("data directory %s was made for %d shards, and %d were asked for; their number is fixed when a cluster is created (%s)",
			dir, f.state.Shards, shards, f.path)
	}
	return f, nil
}

// readFile reads a file that ought to be small.
func readFile(path string) ([]byte, disk.Place, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, disk.Place{}, err
	}
	if !info.Mode().IsRegular() {
		return nil, disk.Place{}, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > fileBytesMax {
		return nil, disk.Place{}, fmt.Errorf("%s is damaged, or of another program: it is %d bytes long", path, info.Size())
	}
	content, err := os.ReadFile(path)
	return content, disk.At(path, info), err
}

// checkEmpty reports what keeps a directory from being used for a new node.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case name == ShardsDirName:
			return fmt.Errorf("data directory %s holds shards, but %s is missing: "+disk.Advice, dir, filepath.Join(dir, FileName))
		case name == FileName+temporary, name == LockName, name == "lost+found", strings.HasPrefix(name, "."):
			// Left by a crash before anything was decided, or not ours to mind.
		default:
			return fmt.Errorf("data directory %s is neither empty nor a coordinator's: it holds %s and no %s",
				dir, filepath.Join(dir, name), FileName)
		}
	}
	return nil
}

// random returns an incarnation or a cluster id: 128 random bits in hexadecimal.
func random() string {
	var raw [peer.IncarnationBytes]byte
	// Since Go 1.24 this cannot fail: a system without randomness ends the program.
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// State returns what the file says: what is being written counts once it is durable.
func (f *File) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := f.state
	state.Members = slices.Clone(state.Members)
	return state
}

// CountStart counts this process among those that have used the directory, and returns
// how many there are. Peers tell processes apart by it (package peer), so it is on disk
// before the process uses a port.
func (f *File) CountStart() (uint64, error) {
	err := f.update(func(s *State) { s.Starts++ })
	return f.State().Starts, err
}

// Supersede notes that another process is newer under the same identity, and why that
// is known. The directory is not used again after that.
func (f *File) Supersede(why string) error {
	return f.update(func(s *State) { s.Superseded = why })
}

// ShardsCreated notes that every shard has been made. It returns once that is on disk.
func (f *File) ShardsCreated() error {
	return f.update(func(s *State) { s.ShardsCreated = true })
}

// update changes the file, on disk first. Who is told of a change can rely on it.
func (f *File) update(change func(*State)) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	before, next := f.State(), f.State()
	change(&next)
	if before.ClusterID != "" && next.ClusterID != before.ClusterID {
		panic("membership: a node's cluster never changes (invariant 2)")
	}
	if next.Incarnation != before.Incarnation || next.NodeID != before.NodeID || next.Shards != before.Shards {
		panic("membership: a node's identity never changes (invariant 1)")
	}
	if err := next.check(); err != nil {
		return fmt.Errorf("not writing %s, which then %w", f.path, err)
	}
	return f.write(&next)
}

const temporary = ".tmp"

// write replaces the file: after a crash it is the old one or the new one. It does
// not touch a file that is somebody else's. One write runs at a time.
func (f *File) write(state *State) error {
	if old := f.places().file; old.Path() != "" {
		if err := old.Check(); err != nil {
			return err
		}
	}
	file, err := replaceFile(f.path, encode(state), func(coming disk.Place) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.at.coming = coming
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at.coming = disk.Place{}
	if file.Path() != "" {
		f.at.file = file
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", f.path, err)
	}
	f.state = *state
	return nil
}

// replaceFile returns what is at the path now if it is the new file, also where it cannot
// say whether that is durable. comes is told of that before it is there.
func replaceFile(path string, content []byte, comes func(disk.Place)) (disk.Place, error) {
	file, err := os.OpenFile(path+temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return disk.Place{}, err
	}
	_, err = file.Write(content)
	info, statErr := file.Stat()
	err = errors.Join(err, statErr, file.Sync(), file.Close())
	if err != nil {
		return disk.Place{}, err
	}
	coming := disk.At(path, info)
	comes(coming)
	if err := os.Rename(path+temporary, path); err != nil {
		return disk.Place{}, err
	}
	return coming, disk.SyncDirectory(filepath.Dir(path))
}

// Check returns [disk.ErrGone] where the file is not in its place any more, and another error
// where it cannot tell.
func (f *File) Check() error {
	for {
		// Not under the lock: a disk that hangs does not keep State from answering.
		at := f.places()
		err := at.file.Check()
		if errors.Is(err, disk.ErrGone) && at.coming.Path() != "" {
			err = at.coming.Check() // it is there already, and not durable yet
		}
		if err == nil || f.places() == at {
			return err
		}
	}
}

// places returns where the file is, and where it is about to be.
func (f *File) places() places {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}
