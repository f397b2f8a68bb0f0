package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
)

// scrapesMax is how many may ask at a time; more are answered 503. Two are usual: a pair
// of Prometheus servers.
const scrapesMax = 4

// Config is what is shown. All functions must be safe to be called at any time, and must
// not wait for a disk or for another node; Numbers alone may.
type Config struct {
	Version   string        // of the program
	NodeID    string        // of this node
	ClusterID func() string // "" while it belongs to none
	Ready     func() bool
	Disk      func() Disk
	// Shards is how many the cluster has, and Numbers what this node knows of one, false
	// where it is not open.
	Shards  int
	Numbers func(shard int) (shard.Numbers, bool)
	// Ports are the servers whose calls are counted.
	Ports []Port
	// Actor holds the bounds of a shard.
	Actor actor.Config
	// ReadWithin is how long a shard may take to be read; 0 is a second.
	ReadWithin time.Duration
	// Logger is told of what cannot be shown. It may be nil.
	Logger *slog.Logger
}

// Port is one server.
type Port struct {
	Name string
	// Expected shows series that are 0, where the first increase of them matters.
	Expected bool
	Calls    *rpc.Calls
	// NotAfter is when the certificate that the port shows is over; nil: it shows none.
	NotAfter func() time.Time
	// Connections are those that are open, how many may be, and how many were refused for that
	// since the start; nil: they are not counted.
	Connections func() (open, most int64, refused uint64)
}

// Disk is the free space where the data directory lies.
type Disk struct {
	FreeBytes    int64
	Known        bool // FreeBytes was looked at
	FreeBytesMin int64
	Full         bool // new keys are refused
}

// Metrics are those of one node.
type Metrics struct {
	registry  *prometheus.Registry
	collector *collector
	logger    *slog.Logger
}

// New returns the metrics of a node.
func New(cfg Config) (*Metrics, error) {
	return newOn(prometheus.NewRegistry(), cfg)
}

func newOn(registry *prometheus.Registry, cfg Config) (*Metrics, error) {
	if cfg.ClusterID == nil || cfg.Ready == nil || cfg.Disk == nil || cfg.Numbers == nil {
		return nil, errors.New("metrics: ClusterID, Ready, Disk and Numbers are required")
	}
	if cfg.ReadWithin == 0 {
		cfg.ReadWithin = time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Metrics{registry: registry, collector: newCollector(cfg), logger: cfg.Logger}
	for _, c := range []prometheus.Collector{
		m.collector,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return m, nil
}

// Handler answers with all metrics, and shows what it can where some cannot be read.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(m.logger.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		OfferedCompressions: []promhttp.Compression{promhttp.Identity, promhttp.Gzip},
		MaxRequestsInFlight: scrapesMax,
	})
}

// Wait returns once no shard is being read any more. It is to be called after the last
// request has ended.
func (m *Metrics) Wait() { m.collector.readings.work.Wait() }
