# One entry point: CI runs exactly `make test`. Every target prints what it does.

SHELL := /bin/bash
CARGO ?= cargo
ASAN := RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/tests/sanitizer/rustc ASAN_OPTIONS=detect_leaks=1 $(CARGO) test --workspace

.DEFAULT_GOAL := help
.PHONY: help test test-long test-torch cuda interop console watch deploy deploy-build python accuracy lint sanitize sanitize-long bench bench-engine bench-service bench-durability bench-latency bench-sweeps bench-codec bench-python clean bench-peers

help: ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

test: lint ## lint, all tests, and the sanitizer over the unsafe code (what CI runs)
	@echo "== all tests"
	$(CARGO) test --locked --workspace
	@$(MAKE) --no-print-directory cuda
	@$(MAKE) --no-print-directory interop
	@$(MAKE) --no-print-directory console
	@$(MAKE) --no-print-directory watch
	@$(MAKE) --no-print-directory python
	@$(MAKE) --no-print-directory deploy
	@$(MAKE) --no-print-directory sanitize
	@echo "== make test: all passed"

# Many programs: each compiled as a whole would take longer than the tests.
test-long: export CARGO_PROFILE_RELEASE_LTO = off
test-long: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 16
test-long: ## the same properties with twenty times the cases, and the sanitizer over every test
	@echo "== all tests, 20 times the cases"
	HOTROW_TEST_SCALE=20 $(CARGO) test --locked --release --workspace
	@tests/cuda/check
	@echo "== hot rows on the emulated GPU, twice the cases"
	HOTROW_TEST_SCALE=2 HOTROW_TEST_POOL=cuda $(CARGO) test --locked --release --workspace --test engine --test durability --test service
	@$(MAKE) --no-print-directory sanitize-long

cuda: ## the GPU kernels for every architecture, and the engine and four shards on an emulated GPU
	@echo "== GPU kernels: NVRTC and ptxas"
	@tests/cuda/compile src/cache/cuda/kernels.cu
	@echo "== the engine, and four shards, on an emulated GPU"
	@# Hundreds of engines side by side take long there; four shards show the same.
	HOTROW_TEST_POOL=cuda $(CARGO) test --locked --workspace --test engine -- --skip any_split_holds_the_same_bits
	HOTROW_TEST_POOL=cuda $(CARGO) test --locked --workspace --test service -- shards_agree

interop: ## clients that we did not write: Python's gRPC with generated stubs, a real Prometheus
	@echo "== Python's gRPC and Prometheus against a real server"
	@tests/interop/run

console: ## the console in a headless Chromium, against two real shards
	@echo "== the console in Chromium"
	@tests/console/run

watch: ## Prometheus's rules and Grafana's dashboard, with a real Prometheus and two shards under load
	@echo "== what watches hotrow: rules, alerts and the dashboard"
	@tests/watch/run

python: ## the Python package, with NumPy and nothing else
	@echo "== the Python package"
	@python/tests/run

deploy: ## what deploy/ has: rendered, validated, linted, and started as far as that goes without an engine
	@echo "== deploy: Kubernetes, image, compose, systemd"
	@tests/deploy/run

deploy-build: ## the same, and the image's build commands as they are (minutes)
	@echo "== deploy, with a build as in the image"
	@tests/deploy/run --build

test-torch: ## the PyTorch modules, in an environment of their own (5 GB the first time)
	@echo "== PyTorch modules against PyTorch's own"
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 $$(python/environment torch) -m pytest -q -p no:cacheprovider python/tests

accuracy: ## accuracy against bytes, as in the paper: docs/accuracy (hours; goes on where it stopped; ARGS=--help)
	@echo "== the accuracy study"
	python=$$(python/environment torch) && cd python && $$python -m accuracy $(ARGS)

lint: ## formatting, clippy and documentation, warnings are errors
	@echo "== formatting"
	$(CARGO) fmt --all --check
	@echo "== clippy"
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@echo "== documentation"
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

sanitize: ## AddressSanitizer over the unsafe code, all of which the engine's tests reach
	@echo "== AddressSanitizer: the engine"
	$(ASAN) --locked --test engine -- --skip stochastic_rounding::
	@# NVRTC looks for its other half beside itself, but not through the sanitizer's dlopen.
	LD_LIBRARY_PATH=$$(dirname $$(tests/cuda/fetch)) HOTROW_TEST_POOL=cuda \
		$(ASAN) --locked --test engine -- model::

sanitize-long:
	@echo "== AddressSanitizer: all tests but that of resident memory, which it inflates"
	$(ASAN) --locked --tests -- --skip ten_million_trained_rows
	LD_LIBRARY_PATH=$$(dirname $$(tests/cuda/fetch)) HOTROW_TEST_POOL=cuda $(ASAN) --locked --test engine

bench-engine: ## the engine beside the machine's limits, as `ratio NAME VALUE` lines (under two minutes)
	@echo "== engine against limits, one run"
	$(CARGO) bench --locked --bench ratios

bench-sweeps: ## pull and push over rows, dim, batch, precision, cache, clients, shards ... beside the limits (ARGS=--help)
	@echo "== engine and service against limits, one thing changed at a time"
	$(CARGO) bench --locked --bench sweeps -- $(ARGS)

bench-latency: ## the tail of pulls at half of the peak load
	@echo "== latency at half of the peak"
	$(CARGO) bench --locked --bench latency

bench-service: ## the service beside a bare TCP server, as `ratio NAME VALUE` lines
	@echo "== service against bare TCP, one run"
	$(CARGO) bench --locked --bench service

bench-durability: ## the log beside the disk, checkpoints beside plain writing, pulls during a save
	@echo "== log and checkpoints against the disk, one run"
	$(CARGO) bench --locked --bench durability

bench-codec: ## encode and decode for every precision
	@echo "== encode and decode"
	$(CARGO) bench --locked --bench codec

bench-python: ## pulls from Python beside the Rust client's
	@echo "== the Python client against the Rust client, one run"
	$$(python/environment release) python/benches/pull.py

bench-peers: ## hotrow beside Redis, memcached, grpcio, torch rpc, fbgemm and bare sockets (ARGS=--help)
	@echo "== systems beside each other, one run"
	python=$$(python/environment bench) && benches/peers/prepare && $(CARGO) fetch --locked && cd benches && ./network $$python -m compare $(ARGS)

bench: ## all benchmarks, and docs/BENCHMARKS.md from them (an hour; ARGS=--help)
	@echo "== all benchmarks, one report"
	python=$$(python/environment bench) && benches/peers/prepare && $(CARGO) fetch --locked && cd benches && ./network $$python -m report $(ARGS)

clean: ## remove what was built
	$(CARGO) clean
