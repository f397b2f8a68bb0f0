package process

import (
	"path"
	"path/filepath"
	"testing"
)

// BuildProgram builds a program of the module, such as "examples/leasebroker", into a
// directory, as [Build] does with those of the nodes, and returns where it is.
func BuildProgram(dir, name string) (string, error) {
	program := filepath.Join(dir, path.Base(name))
	arguments := []string{"build", "-o", program}
	if raceDetector {
		arguments = append(arguments, "-race")
	}
	_, err := goCommand(append(arguments, module+name)...)
	return program, err
}

// NewProgram prepares a process of a program that is no node, without starting it. It is
// started, killed, paused and listened to like one, and ends with its test; it has no
// gRPC services, so there is no Conn and no Serving.
func NewProgram(t testing.TB, program string, arguments ...string) *Node {
	t.Helper()
	name := filepath.Base(program)
	n := &Node{Name: name, program: program, arguments: arguments, output: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(func() { (&Cluster{Nodes: []*Node{n}}).end(t) })
	return n
}

// FreeAddress returns a host:port on loopback that nobody listens on.
func FreeAddress(t testing.TB) string {
	t.Helper()
	free := ports{given: make(map[int]bool)}
	address, err := free.take()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
