package rpc

import (
	"log/slog"
	"sync/atomic"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// Register adds CoordinatorService and AdminService to gRPC servers, which must have
// [ServerOptions] and share the bounds of the Config: a node has one server that clients
// reach, and one on its peer port that other nodes forward to. It fails where the Config
// is not valid.
func Register(cfg Config, servers ...Server) error {
	if err := cfg.validate(); err != nil {
		return err
	}
	codec, err := newCodec(cfg.Settings.CompressFrom)
	if err != nil {
		return err
	}
	s := &server{
		shards:      cfg.Shards,
		cluster:     cfg.Cluster,
		membership:  cfg.Membership,
		settings:    cfg.Settings,
		storageFull: cfg.StorageFull,
		space:       cfg.Space,
		codec:       codec,
		logger:      cfg.Logger,
		stopping:    cfg.Stopping,
		closing:     cfg.Closing,
		unsent:      cfg.unsent,
		sessions:    newSessionRoom(cfg.Settings.SessionBytesMax),
		headers:     make([]atomic.Pointer[shardHeader], cfg.Shards.Shards()),
	}
	s.workers = newWorkers(s.sessions.sessionsMax)
	if s.storageFull == nil {
		s.storageFull = func() bool { return false }
	}
	if s.space == nil {
		s.space = func() string { return "" }
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.unsent == nil {
		s.unsent = newUnsent(cfg.Settings.UnsentBytesMax)
	}
	s.unsent.logger = s.logger
	for i, server := range servers {
		calls := NewCalls()
		if i < len(cfg.Calls) {
			calls = cfg.Calls[i]
		}
		within := Bounded(server, calls, cfg.Settings.CallsMax, s.logger)
		within.RegisterService(tolerant(coordinatorv1.CoordinatorService_ServiceDesc, s.unsent, s.expected, calls), &coordinatorService{server: s, calls: calls})
		within.RegisterService(tolerant(coordinatorv1.AdminService_ServiceDesc, s.unsent, s.expected, calls), &adminService{server: s})
	}
	return nil
}
