package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

const (
	roundTimeout = time.Minute      // of one round of settling; the next one goes on
	listTimeout  = 10 * time.Second // of one call to a node of the coordinator
	failuresMost = 10               // of a venue's lookups in a round, before the rest is left to the next
)

// settler finds out what became of orders in doubt: those whose gateway was killed, or
// heard nothing of the exchange until the reservation was over. Several gateways may
// settle at once: each settlement names the revision that it has looked at, so that one
// counts.
type settler struct {
	gateway *gateway
	nodes   []*grpc.ClientConn // of the coordinator
	asked   int                // which of them
}

func newSettler(g *gateway, endpoints []string) (*settler, error) {
	s := &settler{gateway: g}
	for _, endpoint := range endpoints {
		conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		if err != nil {
			s.close()
			return nil, err
		}
		s.nodes = append(s.nodes, conn)
	}
	return s, nil
}

func (s *settler) close() {
	for _, conn := range s.nodes {
		_ = conn.Close()
	}
}

// run settles what is in doubt, every so often, until ctx ends.
func (s *settler) run(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		bound, cancel := context.WithTimeout(ctx, roundTimeout)
		if err := s.round(bound); err != nil && ctx.Err() == nil {
			s.gateway.log.Warn("what is in doubt could not be looked at", "error", err)
			s.asked++ // another node may answer
		}
		cancel()
	}
}

// round looks at every order in doubt, once.
func (s *settler) round(ctx context.Context) error {
	admin := coordinatorv1.NewAdminServiceClient(s.nodes[s.asked%len(s.nodes)])
	if some, err := anyInDoubt(ctx, admin); err != nil || !some {
		return err
	}
	request := &coordinatorv1.ListRecordsRequest{Namespace: s.gateway.namespace, State: coordinatorv1.State_STATE_IN_DOUBT}
	failures := map[*venue]int{}
	for {
		bound, cancel := context.WithTimeout(ctx, listTimeout)
		page, err := admin.ListRecords(bound, request)
		cancel()
		if err != nil {
			return err
		}
		for _, record := range page.GetRecords() {
			s.settle(ctx, record, failures)
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}

// anyInDoubt says whether a listing, which reads every record there is, is worth it.
func anyInDoubt(ctx context.Context, admin coordinatorv1.AdminServiceClient) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	shards, err := admin.ListShards(ctx, &coordinatorv1.ListShardsRequest{})
	for _, shard := range shards.GetShards() {
		if shard.GetRecords().GetInDoubt() > 0 {
			return true, nil
		}
	}
	return false, err
}

// settle asks the exchange what became of one order, and tells the coordinator.
//
// The record is in doubt, so its reservation has lapsed, and the order is not valid any
// more (see doc.go): what the exchange does not have now it will never have.
func (s *settler) settle(ctx context.Context, record *coordinatorv1.Record, failures map[*venue]int) {
	g, wire := s.gateway, record.GetIdentity()
	id := client.Identity{
		Namespace: wire.GetNamespace(), Principal: wire.GetPrincipal(), Operation: wire.GetOperation(), Key: wire.GetKey(),
	}
	orderID := clientOrderID(id, record.GetFence())
	log := g.log.With("key", id.Key, "fence", record.GetFence(), "attempt", record.GetAttempt(),
		"account", id.Principal, "operation", id.Operation, "client_order_id", orderID)
	venue := g.venueOf(id.Operation)
	switch {
	case venue == nil:
		log.Warn("an order in doubt is left to an operator: there is no such venue")
		return
	case record.GetFence() == 0: // shown to those who may resolve only, and the id is made of it
		log.Warn("an order in doubt is left to an operator: this gateway may not settle it")
		return
	case failures[venue] >= failuresMost:
		return
	}
	found, _, err := venue.find(ctx, orderID)
	if err != nil {
		failures[venue]++
		log.Warn("an order stays in doubt: its exchange does not say", "error", err)
		return
	}
	if found != nil {
		err = g.coordinator.ResolveApplied(ctx, id, record.GetRevision(), filledResponse(*found),
			fmt.Sprintf("the exchange has it as its order %d", found.OrderID))
	} else {
		err = g.coordinator.ResolveNotApplied(ctx, id, record.GetRevision(), "the exchange does not have it, and accepts it no more")
	}
	switch {
	case errors.Is(err, client.ErrRevisionMismatch), errors.Is(err, client.ErrNotInDoubt), errors.Is(err, client.ErrNotFound):
		// Somebody else was quicker.
	case err != nil:
		log.Warn("an order in doubt could not be settled", "error", err)
	default:
		log.Info("an order in doubt is settled", "filled", found != nil)
	}
}
