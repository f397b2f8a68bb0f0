# The commands a contributor runs. `make` alone lists them.

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Tools are pinned in a module of their own, so that what they need never decides
# what the product is built with.
TOOL := go tool -modfile=tools/go.mod

# For `test`, `bench` and `fuzz`: which packages, and further flags for go test.
PKG ?= ./...
TESTFLAGS ?=
FUZZTIME ?= 10s

# For `bench-compare`.
ROUNDS ?= 5
ETCD ?= bin/etcd

# For `growth`; ROUNDS too.
RECORDS ?= 5000000

# For `simulate`.
HOURS ?= 1
SEED ?= 0

.PHONY: help build run cluster test lint generate check-generate check-modules tools vulncheck bench bench-compare bench-diff scale growth fault overload fuzz simulate clean

help: ## List the commands (the default)
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

build: ## Build bin/coordinator and bin/coordctl
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -o bin/coordinator ./cmd/coordinator
	CGO_ENABLED=0 go build -trimpath -o bin/coordctl ./cmd/coordctl

run: build ## Start one node on 127.0.0.1:7420, its data in ./coordinator-data
	exec bin/coordinator

cluster: build ## Start three nodes on 127.0.0.1:7421-7423, their data in ./cluster-data
	exec scripts/cluster.sh

test: ## Run all tests under the race detector, in random order (PKG=…, TESTFLAGS=…)
	go test -race -shuffle=on -timeout 30m $(TESTFLAGS) $(PKG)

lint: ## Vet and lint the code and the proto files
	go vet ./...
	cd test/compare && go vet ./...
	$(TOOL) golangci-lint run
	cd test/compare && go tool -modfile=../../tools/go.mod golangci-lint run --config ../../.golangci.yml
	$(TOOL) buf lint
	$(TOOL) buf format --diff --exit-code

generate: ## Generate gen/ from proto/
	$(TOOL) buf generate

check-generate: generate ## Fail where gen/ is not what proto/ generates
	@git diff --exit-code -- gen
	@untracked=$$(git ls-files --others --exclude-standard -- gen); \
	if [[ -n "$$untracked" ]]; then echo "generated, but not in git:"; echo "$$untracked"; exit 1; fi

check-modules: ## Fail where go.mod or go.sum is not tidy
	go mod tidy -diff
	cd test/compare && go mod tidy -diff
	cd test/compare/etcd && go mod tidy -diff

tools: ## Build the tools once, so that the next call of each is quick
	$(TOOL) buf --version
	$(TOOL) golangci-lint version
	@$(TOOL) -n protoc-gen-go-grpc >/dev/null

vulncheck: ## Look for known vulnerabilities in what is linked (needs vuln.go.dev)
	$(TOOL) govulncheck ./...

bench: ## Run the benchmarks (PKG=…, TESTFLAGS=…)
	go test -run '^$$' -bench . -benchmem $(TESTFLAGS) $(PKG)

# etcd is built from its released module unless ETCD names a program, such as Debian's.
bench-compare: ## Measure beside etcd, Redis and PostgreSQL in one run (ROUNDS=5, ETCD=bin/etcd, TESTFLAGS=…)
	@mkdir -p bin
	@if [[ "$(ETCD)" == bin/etcd ]]; then cd test/compare/etcd && go build -o ../../../bin/etcd go.etcd.io/etcd/server/v3; fi
	cd test/compare && ETCD="$(abspath $(ETCD))" go test -count=1 -v -timeout 3h -run '^TestCompare$$' . -args -rounds $(ROUNDS) -out $(CURDIR)/bin/compare.md $(TESTFLAGS)

bench-diff: ## Compare the hot path's benchmarks with the merge base (BASE=…, PKG=…, BENCH=…, COUNT=6)
	@scripts/bench-diff.sh

scale: ## Prove what is promised of a million records (ten minutes, 1 GiB of disk)
	COORDINATOR_SCALE=1 go test -count=1 -v -timeout 30m ./test/scale

growth: ## Measure beside five million records (RECORDS=5000000, ROUNDS=5, TESTFLAGS=…; ten minutes, 8 GB of disk)
	go test -count=1 -v -timeout 30m -run '^TestGrowth$$' ./test/scale -args -records $(RECORDS) -rounds $(ROUNDS) $(TESTFLAGS)

# The processes have the machine to themselves. Disks are mostly waited for, and planted faults
# are simulated meanwhile.
fault: ## Do to three real nodes whatever happens to nodes, and check every answer (half an hour)
	export COORDINATOR_FAULT=1; failed=0; \
	go test -count=1 -v -timeout 90m ./test/fault || failed=$$?; \
	go test -count=1 -v -timeout 90m -p 2 ./test/disk ./test/planted || failed=$$?; \
	exit $$failed

overload: ## Put ten times the callers on three nodes that they can serve (five minutes)
	COORDINATOR_FAULT=1 go test -count=1 -v -timeout 30m ./test/overload

simulate: ## Live through busy hours of a cluster in virtual time (HOURS=1, SEED=0: a fresh one)
	@mkdir -p bin
	go test -c -o bin/simulation.test ./test/simulation
	@bin/simulation.test -test.run '^TestSimulate$$' -test.timeout 0 -hours $(HOURS) -seed $(SEED)

fuzz: ## Run each fuzzer for a short while (FUZZTIME=10s, PKG=…)
	@for package in $$(go list $(PKG)); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $(TESTFLAGS) $$package; \
		done; \
	done

clean: ## Delete bin/ (data directories stay)
	rm -rf bin
