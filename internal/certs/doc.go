// Package certs holds what one port shows and believes, from PEM files that are looked at again
// while the node runs, so that a certificate can be renewed without a restart.
//
// Invariants:
//
//  1. Certificate, key and authorities that are used were in the files together, and belong
//     together. What does not is never used: at a start it is an error that names the file, and
//     afterwards what was read before is kept, and the log told. What is being written is left
//     alone until it stays as it is.
//  2. A handshake reads no file. A disk that hangs keeps nobody out.
//  3. Who is to be asked for a certificate shows one of the authorities of the present, in every
//     handshake: there are no sessions that are resumed without it.
//  4. Nothing older than TLS 1.3 is spoken. Both ends are ours, or gRPC libraries of today.
//
// Who renews a certificate replaces its file and the key's in whatever order, or a directory of
// both at once. A connection that is open keeps what it was opened with.
package certs
