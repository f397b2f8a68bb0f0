package main

import (
	"encoding/hex"
	"fmt"
	"strings"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

type identityJSON struct {
	Namespace string `json:"namespace"`
	Principal string `json:"principal"`
	Operation string `json:"operation"`
	Key       string `json:"key"`
}

// recordJSON is a record as get and records show it.
type recordJSON struct {
	Identity      identityJSON  `json:"identity"`
	State         string        `json:"state"`
	Fence         uint64        `json:"fence,omitempty"`
	Attempt       uint32        `json:"attempt"`
	Revision      uint64        `json:"revision,omitempty"`
	Fingerprint   string        `json:"fingerprint"`
	OnLapse       string        `json:"on_lapse"`
	PendingTTL    string        `json:"pending_ttl"`
	Retention     string        `json:"retention"`
	CreatedAt     string        `json:"created_at,omitempty"`
	StartedAt     string        `json:"started_at,omitempty"`
	CommittedAt   string        `json:"committed_at,omitempty"`
	Owner         string        `json:"owner,omitempty"`
	Response      *responseJSON `json:"response,omitempty"`
	ResponseBytes uint64        `json:"response_bytes,omitempty"`
	ReleaseReason string        `json:"release_reason,omitempty"`
	Remaining     string        `json:"remaining,omitempty"`
	Age           string        `json:"age"`
	Late          bool          `json:"late"`
}

func showRecord(r *coordinatorv1.Record, withBody bool) recordJSON {
	return recordJSON{
		Identity: identityJSON{
			Namespace: r.GetIdentity().GetNamespace(), Principal: r.GetIdentity().GetPrincipal(),
			Operation: r.GetIdentity().GetOperation(), Key: r.GetIdentity().GetKey(),
		},
		State:         enum(r.GetState(), "STATE_"),
		Fence:         r.GetFence(),
		Attempt:       r.GetAttempt(),
		Revision:      r.GetRevision(),
		Fingerprint:   hex.EncodeToString(r.GetFingerprint()),
		OnLapse:       strings.ToLower(enum(r.GetOnLapse(), "ON_LAPSE_")),
		PendingTTL:    duration(r.GetPendingTtl()),
		Retention:     duration(r.GetRetention()),
		CreatedAt:     moment(r.GetCreatedAt()),
		StartedAt:     moment(r.GetStartedAt()),
		CommittedAt:   moment(r.GetCommittedAt()),
		Owner:         r.GetOwner(),
		Response:      showResponse(r.GetResponse(), withBody),
		ResponseBytes: r.GetResponseBytes(),
		ReleaseReason: r.GetReleaseReason(),
		Remaining:     duration(r.GetRemaining()),
		Age:           duration(r.GetAge()),
		Late:          r.GetLate(),
	}
}

func recordRows(r recordJSON) [][]string {
	rows := [][]string{
		{"namespace", text(r.Identity.Namespace)},
		{"principal", text(r.Identity.Principal)},
		{"operation", text(r.Identity.Operation)},
		{"key", text(r.Identity.Key)},
		{"state", r.State},
		{"attempt", fmt.Sprint(r.Attempt)},
		{"fence", number(r.Fence)},
		{"revision", number(r.Revision)},
		{"fingerprint", r.Fingerprint},
		{"on lapse", r.OnLapse},
		{"pending ttl", brief(r.PendingTTL)},
		{"retention", brief(r.Retention)},
		{"created at", r.CreatedAt},
		{"started at", r.StartedAt},
		{"committed at", r.CommittedAt},
		{"owner", text(r.Owner)},
		{"release reason", text(r.ReleaseReason)},
		{"age", brief(r.Age)},
		{"remaining", brief(r.Remaining)},
		{"late", yes(r.Late)},
		{"response bytes", number(r.ResponseBytes)},
	}
	return append(rows, responseRows(r.Response)...)
}
