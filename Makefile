# Two targets matter: `make demo` and `make test`. Both install what they
# need (as root, on Debian 12 or newer).

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  = -s -w -buildid= -X github.com/turnout-project/turnout/internal/buildinfo.version=$(VERSION)
GOFLAGS_BUILD = -trimpath -ldflags '$(LDFLAGS)'
LINT = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.6.2
PROGRAMS = imgbuild pxeserver nodeagent

export CGO_ENABLED = 0

.DEFAULT_GOAL := help
.PHONY: help deps build build-arm64 demo rack test unit machine failures ha arm64 bootside lint clean release test-packages

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

deps: ## install the tools that building, testing and the demo need
	@scripts/deps.sh

build: ## build the three programs into bin/
	go build $(GOFLAGS_BUILD) -o bin/ $(addprefix ./cmd/,$(PROGRAMS))

build-arm64: ## the node agent for images of arm64 nodes
	GOARCH=arm64 go build $(GOFLAGS_BUILD) -o bin/nodeagent-arm64 ./cmd/nodeagent

demo: deps build ## play the whole job on a virtual rack: PXE, canary, rollback, flip, tampering
	go build -o bin/rackdemo ./internal/demo/rackdemo
	bin/rackdemo $(DEMOFLAGS)

rack: deps build ## a virtual rack to try things on: console in your browser, until Ctrl-C
	go build -o bin/rackdemo ./internal/demo/rackdemo
	bin/rackdemo -stay -dir out/rack $(DEMOFLAGS)

test: deps build unit machine ## everything that CI runs

unit: ## unit and integration tests
	go vet ./...
	go test -timeout 20m $(TESTFLAGS) ./...

machine: build ## the demo's scenes and power cuts, as tests on virtual machines
	TURNOUT_MACHINE_TEST=1 go test -count=1 -timeout 60m -v -run 'TestRack|TestPowerCuts' ./internal/demo
	TURNOUT_MACHINE_TEST=1 go test -count=1 -timeout 60m -v -run TestRun ./docs

failures: build ## bring a virtual node down in seven more ways; it must come back by itself
	TURNOUT_MACHINE_TEST=1 go test -count=1 -timeout 60m -v -run TestFailures ./internal/demo

ha: build ## two servers on PostgreSQL: one is killed, then the other hangs, in the middle of trials
	TURNOUT_MACHINE_TEST=1 go test -count=1 -timeout 60m -v -run TestHighAvailability ./internal/demo

bootside: ## boot virtual machines by HTTPS, by iPXE, by BIOS (which must be refused), and without a server
	TURNOUT_MACHINE_TEST=1 go test -count=1 -timeout 120m -v -run 'TestOVMFBootsByHTTPS|TestIPXEBoots|TestBIOSIsRefused|TestDiskBootsWithoutServer' ./internal/netboot

arm64: build build-arm64 ## build an image for arm64 nodes on this host, boot it, compare its TPM with what was predicted
	scripts/deps.sh qemu-user-static
	scripts/arm64.sh

lint: ## golangci-lint, the version that is pinned here
	go run $(LINT) run

clean: ## remove what was built; downloaded packages stay in .cache
	rm -rf bin out

release: ## programs, Debian packages, bill of materials and checksums in dist/ (RELEASE_KEY=… signs them)
	packaging/release.sh

test-packages: ## install, upgrade and purge the Debian packages in a clean Debian root
	packaging/twice.sh
