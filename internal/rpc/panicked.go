package rpc

import (
	"log/slog"
	"runtime/debug"

	"github.com/atmostonce/coordinator/internal/reason"
)

// Panicked logs a panic of a handler, and returns what its caller is told: the call may
// have been applied before. It is to be called where the panic is recovered from.
func Panicked(logger *slog.Logger, method string, cause any) error {
	logger.Error("a call panicked", "method", method, "panic", cause, "stack", string(debug.Stack()))
	return reason.Error(reason.OutcomeUnknown, "the server failed while it carried out the call; the outcome is unknown")
}
