package compare

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/atmostonce/coordinator/test/process"
)

// postgres is one PostgreSQL that syncs its log before it answers, with a connection for
// each caller, as many as it takes by default.
type postgres struct {
	node *process.Node
	pool *pgxpool.Pool
}

// postgresConnections is a little less than its default of 100.
const postgresConnections = 90

// startPostgres makes a database and starts its server. It refuses to be run by root, who
// runs it as the user that its package has made.
func startPostgres(t testing.TB, programs string) *postgres {
	t.Helper()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	var as []string
	if os.Getuid() == 0 {
		as = asUser(t, dir, "postgres")
	}
	initialise := append(as, filepath.Join(programs, "initdb"), "--pgdata", data, "--auth", "trust", "--username", "compare", "--encoding", "UTF8", "--locale", "C")
	if out, err := exec.CommandContext(t.Context(), initialise[0], initialise[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	address := process.FreeAddress(t)
	host, port, _ := strings.Cut(address, ":")
	n := process.NewProgram(t, filepath.Join(programs, "postgres"), "-D", data, "-h", host, "-p", port, "-k", "")
	if err := n.StartUnder(as); err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(fmt.Sprintf("postgres://compare@%s/postgres?sslmode=disable", address))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = postgresConnections
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	p := &postgres{node: n, pool: pool}
	t.Cleanup(func() {
		pool.Close()
		if _, err := n.Stop(); err != nil { // its children end with it
			t.Error(err)
		}
	})
	await(t, "PostgreSQL", pool.Ping)
	for _, statement := range []string{
		"CREATE TABLE plain (" + columns + ")",
		"CREATE TABLE swept (" + columns + ")",
		"CREATE INDEX ON swept (until)",
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	p.sweep(t)
	return p
}

// The tables: one in which a row stays until somebody removes it, and one whose rows go
// when their time is over, as a TTL has it.
const (
	plain   = "plain"
	swept   = "swept"
	columns = "name text PRIMARY KEY, token text NOT NULL, until timestamptz NOT NULL, response text"
)

// sweep removes once a second what is over, as long as the test goes on. In a run nothing
// is: what it costs is the index.
func (p *postgres) sweep(t testing.TB) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		every := time.NewTicker(time.Second)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
				if _, err := p.pool.Exec(ctx, "DELETE FROM swept WHERE until < now()"); err != nil && ctx.Err() == nil {
					t.Errorf("sweep: %v", err)
				}
			}
		}
	})
	t.Cleanup(func() {
		stop()
		sweeping.Wait()
	})
}

// asUser returns what a command is put behind to be run as another user, who may then
// enter the directory.
func asUser(t testing.TB, dir, name string) []string {
	t.Helper()
	who, err := user.Lookup(name)
	if err != nil {
		t.Skipf("PostgreSQL refuses to be run by root, and there is no user %s", name)
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("PostgreSQL refuses to be run by root, and there is no setpriv")
	}
	uid, err := strconv.Atoi(who.Uid)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.Atoi(who.Gid)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	// The parent is the test's own, and closed to others.
	if err := os.Chmod(filepath.Dir(dir), 0o711); err != nil { //nolint:gosec // to be passed through, not listed
		t.Fatal(err)
	}
	return []string{setpriv, "--reuid", who.Uid, "--regid", who.Gid, "--clear-groups", "--"}
}

// pids returns the server and the processes that it has started.
func (p *postgres) pids() []int {
	pid := p.node.PID()
	pids := []int{pid}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return pids
	}
	for field := range strings.FieldsSeq(string(children)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// insert is an INSERT that says whether the row is new, and what is stored in it.
func insert(table string) string {
	return "INSERT INTO " + table + ` (name, token, until) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING (xmax = 0), coalesce(response, '')`
}

// pair returns what makes an INSERT, and an UPDATE of the new row.
func (p *postgres) pair(table string) func(context.Context, int) error {
	insert := insert(table)
	update := "UPDATE " + table + " SET response = $3, until = $4 WHERE name = $1 AND token = $2 AND response IS NULL"
	return func(ctx context.Context, _ int) error {
		name, token := newName(), rand.Text()
		fresh, held := false, ""
		if err := p.pool.QueryRow(ctx, insert, name, token, time.Now().Add(pendingWindow)).Scan(&fresh, &held); err != nil {
			return err
		}
		if !fresh {
			return errTaken
		}
		done, err := p.pool.Exec(ctx, update, name, token, response, time.Now().Add(retentionWindow))
		if err == nil && done.RowsAffected() != 1 {
			err = errLost
		}
		return err
	}
}

// duplicate is the same INSERT of a row that is there, and returns what it holds.
func (p *postgres) duplicate(ctx context.Context, _ int) error {
	fresh, held := false, ""
	err := p.pool.QueryRow(ctx, insert(plain), taken, rand.Text(), time.Now().Add(pendingWindow)).Scan(&fresh, &held)
	switch {
	case err != nil:
		return err
	case fresh:
		return errTwice
	case held != response:
		return errLost
	}
	return nil
}

func (p *postgres) takeKey(t testing.TB) {
	t.Helper()
	if _, err := p.pool.Exec(t.Context(), `INSERT INTO plain (name, token, until, response) VALUES ($1, '', now(), $2)
		ON CONFLICT (name) DO NOTHING`, taken, response); err != nil {
		t.Fatal(err)
	}
}

func postgresVersion(t testing.TB, programs string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "postgres"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(strings.TrimSpace(string(out)), "postgres (PostgreSQL)", "PostgreSQL", 1)
}
