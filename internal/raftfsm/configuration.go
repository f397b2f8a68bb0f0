package raftfsm

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Voters returns a configuration in which every given server has a vote, for
// [GroupConfig.Bootstrap].
func Voters(servers ...raft.Server) *raft.Configuration {
	configuration := &raft.Configuration{}
	for _, server := range servers {
		server.Suffrage = raft.Voter
		configuration.Servers = append(configuration.Servers, server)
	}
	return configuration
}

// checkConfiguration returns why no cluster could begin with the configuration.
func checkConfiguration(configuration *raft.Configuration) error {
	ids := make(map[raft.ServerID]bool)
	addresses := make(map[raft.ServerAddress]bool)
	voters := 0
	for _, server := range configuration.Servers {
		switch {
		case server.ID == "" || server.Address == "":
			return fmt.Errorf("a server needs an id and an address, there is %q at %q", server.ID, server.Address)
		case ids[server.ID]:
			return fmt.Errorf("server %q is listed twice", server.ID)
		case addresses[server.Address]:
			return fmt.Errorf("address %q is listed twice", server.Address)
		}
		ids[server.ID], addresses[server.Address] = true, true
		if server.Suffrage == raft.Voter {
			voters++
		}
	}
	if voters == 0 {
		return errors.New("it has no voter")
	}
	return nil
}

// decodeConfiguration is [raft.DecodeConfiguration] for bytes that may be damaged:
// that one panics.
func decodeConfiguration(encoded []byte) (configuration raft.Configuration, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("malformed configuration: %v", recovered)
		}
	}()
	return raft.DecodeConfiguration(encoded), nil
}

// address returns where the configuration says that the server is.
func address(configuration raft.Configuration, id raft.ServerID) (raft.ServerAddress, bool) {
	for _, server := range configuration.Servers {
		if server.ID == id {
			return server.Address, true
		}
	}
	return "", false
}
