package rpc

import (
	"context"

	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
)

const (
	pageSizeDefault = 100
	pageSizeMax     = 1000
	// pageBytesMax is how large a page of one shard may become before it is cut. A
	// page may hold two of them, and stays well below what a gRPC client accepts.
	pageBytesMax = 1 << 20
	// recordBytes is about how large a record of the largest texts is, without a response.
	recordBytes = 3 << 10
	// pageStepsBeyondShards is how many pages without a match are looked through in one
	// call, beyond one a shard, before the caller gets to see an empty one.
	pageStepsBeyondShards = 16
)

// filter is what a listing shows.
type filter struct {
	namespace string          // "" is every
	operation *string         // nil is every
	state     admission.State // StateNone is every
}

// match reports whether a record is shown.
func (f filter) match(r *admission.Record) bool {
	return (f.namespace == "" || f.namespace == r.Identity.Namespace) &&
		(f.operation == nil || *f.operation == r.Identity.Operation) &&
		(f.state == admission.StateNone || f.state == r.State)
}

// ListRecords implements coordinatorv1.AdminServiceServer. A listing goes through the
// shards in turn, each page read where its shard is led; nothing is kept between
// pages but what the token says.
func (s *adminService) ListRecords(ctx context.Context, request *coordinatorv1.ListRecordsRequest) (*coordinatorv1.ListRecordsResponse, error) {
	if err := s.belongs(); err != nil {
		return nil, err
	}
	filter, at, size, err := s.decodeListing(request)
	if err != nil {
		return nil, err
	}
	if !heldBy(ctx).room(min(2*pageBytesMax, size*recordBytes)) {
		return nil, s.noRoom()
	}
	ctx, cancel := s.bound(ctx, 0)
	defer cancel()
	var (
		page  = &coordinatorv1.ListRecordsResponse{}
		bytes int
	)
	for step := 0; ; step++ {
		part, err := s.shardPage(ctx, request, filter, at, size-len(page.Records))
		if err != nil {
			if len(page.Records) == 0 {
				return nil, err
			}
			return page, nil // the next page begins with the failure
		}
		page.Records = append(page.Records, part.GetRecords()...)
		page.NextPageToken = part.GetNextPageToken()
		bytes += proto.Size(part)
		if page.NextPageToken == "" || isForwarded(ctx) || len(page.Records) >= size ||
			bytes >= pageBytesMax || step >= s.shards.Shards()+pageStepsBeyondShards {
			return page, nil
		}
		if at, err = parsePageToken(page.NextPageToken, filter.hash(), s.shards.Shards()); err != nil {
			return nil, err
		}
	}
}

func (s *server) decodeListing(request *coordinatorv1.ListRecordsRequest) (f filter, at position, size int, err error) {
	f.namespace = request.GetNamespace()
	if err = checkText("namespace", f.namespace, 0, admission.NamespaceBytesMax); err != nil {
		return f, at, 0, err
	}
	if request.Operation != nil {
		f.operation = request.Operation
		if err = checkText("operation", *f.operation, 0, admission.OperationBytesMax); err != nil {
			return f, at, 0, err
		}
	}
	if f.state, err = decodeState(request.GetState()); err != nil {
		return f, at, 0, err
	}
	switch given := request.GetPageSize(); {
	case given == 0:
		size = pageSizeDefault
	case given > pageSizeMax:
		return f, at, 0, invalid("page_size", "is %d, the limit is %d", given, pageSizeMax)
	default:
		size = int(given)
	}
	if token := request.GetPageToken(); token != "" {
		at, err = parsePageToken(token, f.hash(), s.shards.Shards())
	}
	return f, at, size, err
}

// shardPage returns what follows in one shard, and where to go on.
func (s *server) shardPage(ctx context.Context, request *coordinatorv1.ListRecordsRequest, f filter, at position, size int) (*coordinatorv1.ListRecordsResponse, error) {
	page, _, err := deliver(ctx, s, at.shard, hop[*coordinatorv1.ListRecordsResponse]{
		reads: true,
		here: func(ctx context.Context, replica Replica) (*coordinatorv1.ListRecordsResponse, error) {
			return s.localPage(ctx, replica, f, at, size)
		},
		there: passOn(coordinatorv1.NewAdminServiceClient, coordinatorv1.AdminServiceClient.ListRecords, &coordinatorv1.ListRecordsRequest{
			Namespace: request.GetNamespace(),
			Operation: request.Operation,
			State:     request.GetState(),
			PageSize:  uint32(size),
			PageToken: at.token(f.hash()),
		}),
	})
	return page, err
}

// localPage reads a page of a shard that this node leads.
func (s *server) localPage(ctx context.Context, replica Replica, f filter, at position, size int) (*coordinatorv1.ListRecordsResponse, error) {
	var live admission.Time
	records, next, more, err := replica.Page(ctx, at.after, size, func(record *admission.Record, now admission.Time) bool {
		live = now
		return f.match(record)
	})
	if err != nil {
		return nil, err
	}
	page := &coordinatorv1.ListRecordsResponse{}
	bytes := 0
	for i, record := range records {
		encoded := encodeRecord(record, live)
		page.Records = append(page.Records, encoded)
		bytes += proto.Size(encoded)
		if bytes >= pageBytesMax && i < len(records)-1 {
			next, more = record.Sequence, true
			break
		}
	}
	switch {
	case more:
		page.NextPageToken = position{shard: at.shard, after: next}.token(f.hash())
	case at.shard+1 < s.shards.Shards():
		page.NextPageToken = position{shard: at.shard + 1}.token(f.hash())
	}
	return page, nil
}
