# Each target explains itself: `make help`.
PYTHON ?= python3
CHARGE ?= metal
VENV   := .venv
BIN    := $(VENV)/bin
# MLX runs on Metal on a Mac; elsewhere on the device named by KVCACHE_DEVICE: cpu, cuda12 or cuda13.
KVCACHE_DEVICE ?= $(if $(filter Darwin,$(shell uname -s)),,cpu)
# Locked: all that a Mac needs; on Linux the CPU's MLX comes on top of it, locked too. CUDA's is of the
# same version, without a hash.
LOCKS  := -r requirements/dev.txt $(if $(filter cpu,$(KVCACHE_DEVICE)),-r requirements/cpu.txt)
LOCK   := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
          --no-emit-find-links --no-header $(LOCK_ARGS)
TRACES ?= ../shared/traces
DIST   ?= dist
OLDEST := target/oldest
WHEEL_PYTHON ?= $(PYTHON)
FREE_PYTHON ?= python3.14t
# Reference BLAS in the Linux CPU wheel of MLX is 90 times slower than OpenBLAS; used where it is installed.
OPENBLAS := $(shell ldconfig -p 2>/dev/null | awk '/libopenblas\.so\.0/ {print $$NF; exit}')
PRELOAD  := $(if $(OPENBLAS),LD_PRELOAD=$(OPENBLAS),)
# Tests run in this many processes side by side, a file in one of them; 1 runs them in one, as for a debugger.
JOBS     ?= 2
PYTEST   := $(PRELOAD) $(if $(filter 1,$(JOBS)),,OPENBLAS_NUM_THREADS=1) $(BIN)/python -m pytest tests \
            $(if $(filter 1,$(JOBS)),,-n $(JOBS) --dist loadfile)
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name 'Cargo.toml') Cargo.toml

.DEFAULT_GOAL := help
.PHONY: help build demo test test-rust test-python test-full test-rest test-charged test-parallel test-stress fuzz test-oldest test-wheel test-freethreaded lint format docs lock bench bench-memory bench-hit-rates bench-peers bench-segments bench-server bench-stops bench-ranks bench-disk test-disk profile wheel clean openblas

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: $(VENV)/.built  ## environment in .venv, release build of the extension

$(VENV)/.created: requirements/dev.txt requirements/cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes $(LOCKS)
	$(if $(filter cuda%,$(KVCACHE_DEVICE)),$(BIN)/python -m pip install --quiet \
	  $$(sed -n 's/^mlx==\([0-9.]*\).*/mlx[$(KVCACHE_DEVICE)]==\1/p' requirements/cpu.txt))
	@touch $@

$(VENV)/.built: $(VENV)/.created pyproject.toml $(RUST_SOURCES)
	env -u CONDA_PREFIX PIP_QUIET=1 VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	@touch $@

lock:  ## resolve requirements/ again; LOCK_ARGS=--upgrade takes newer versions
	$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet "uv>=0.9"
	$(LOCK) --extra dev --extra bench --extra docs --output-file requirements/dev.txt pyproject.toml
	$(LOCK) --constraints requirements/dev.txt --output-file requirements/cpu.txt requirements/cpu.in
	$(LOCK) --upgrade --resolution lowest-direct --extra dev --extra cpu --output-file requirements/oldest.txt pyproject.toml

openblas:  ## Debian and Ubuntu, as root: install OpenBLAS, which `demo` and `test` then preload
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq libopenblas0-pthread

demo: build  ## chat with a real model, without and with the cache; then evict and measure
	$(PRELOAD) $(BIN)/kvcache demo $(DEMO_ARGS)

test: test-rust test-python  ## Rust and Python, real model included; of long products a part with every pair

test-rust:
	cargo test --workspace --quiet

test-disk:  ## the disk crate's tests with their large counts, optimised: some minutes
	KVCACHE_LONG=1 cargo test --release --package kvcache-disk

test-python: build
	$(PYTEST) $(PYTEST_ARGS)

test-full:  ## every test: whole products, more examples and rounds, wheels built and installed
	KVCACHE_FULL=1 $(MAKE) test JOBS=1

# A process builds the wheels once, so that their tests stay in one.
test-rest: build  ## the tests that `make test` leaves out, without those on the real model
	$(PYTEST) --ignore tests/shipping -m "full and not real_model" $(PYTEST_ARGS)
	$(PRELOAD) $(BIN)/python -m pytest tests/shipping -m full $(PYTEST_ARGS)

# A fake of the device's rules between MLX and its CPU allocator: tests/support/charge.c.
test-charged: build  ## the Python tests where MLX charges for arrays as on CHARGE=metal or cuda (Linux)
	cc -O2 -Wall -Wextra -shared -fPIC -o target/charge.so tests/support/charge.c -ldl
	KVCACHE_TEST_CHARGE=$(CHARGE) LD_PRELOAD=$(OPENBLAS):$(CURDIR)/target/charge.so \
	  $(BIN)/python -m pytest tests -m "not real_model" --ignore tests/shipping $(PYTEST_ARGS)

test-parallel: build  ## each test by four threads at once, where several can run it (tests/support/sharing.py)
	$(PRELOAD) $(BIN)/python -m pytest tests -p pytest_run_parallel.plugin --parallel-threads=4 \
	  --skip-thread-unsafe=true -m "not real_model" $(PYTEST_ARGS)

test-stress: build  ## eight threads, 10,000 random operations each, on one cache and on one index
	KVCACHE_STRESS_OPERATIONS=10000 $(PRELOAD) $(BIN)/python -m pytest tests/whole/test_stress.py tests/index/test_stress.py $(PYTEST_ARGS)

fuzz: build  ## 100,000 random operations in random worlds, disturbed on purpose; SEED=n begins elsewhere
	$(PRELOAD) $(BIN)/python -m tests.fuzz --seed $(or $(SEED),0) --operations 100000 --keep-going

$(OLDEST)/.created: requirements/oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --require-hashes -r requirements/oldest.txt
	@touch $@

test-oldest: $(OLDEST)/.created  ## the wheel with the oldest versions that pyproject.toml allows
	rm -rf $(OLDEST)/dist
	$(MAKE) wheel DIST=$(OLDEST)/dist
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --force-reinstall $(OLDEST)/dist/*.whl
	$(PRELOAD) $(OLDEST)/bin/python -m pytest tests -m "not real_model" --ignore tests/shipping $(PYTEST_ARGS)

# The files that need no MLX, so that they run wherever a wheel can be installed.
test-wheel:  ## tests of the index on a built wheel: WHEEL=dist/….whl WHEEL_PYTHON=python3.14t
	rm -rf target/wheel-env
	$(WHEEL_PYTHON) -m venv target/wheel-env
	target/wheel-env/bin/python -m pip install --quiet --no-deps $(WHEEL)
	target/wheel-env/bin/python -m pip install --quiet hypothesis loguru numpy psutil pytest pytest-timeout
	env $$(target/wheel-env/bin/python -c 'import sysconfig as s; print("PYTHON_GIL=0" * bool(s.get_config_var("Py_GIL_DISABLED")))') \
	  target/wheel-env/bin/python -m pytest tests/index/test_index.py tests/index/test_stress.py $(PYTEST_ARGS)

test-freethreaded:  ## PrefixIndex without the GIL; FREE_PYTHON names a free-threaded interpreter
	$(FREE_PYTHON) -m venv target/freethreaded/env
	target/freethreaded/env/bin/python -m pip install --quiet "maturin>=1.16,<2"
	rm -rf target/freethreaded/dist
	target/freethreaded/env/bin/maturin build --release --locked --no-default-features \
	  --interpreter target/freethreaded/env/bin/python --target-dir target/freethreaded --out target/freethreaded/dist
	$(MAKE) test-wheel WHEEL_PYTHON=$(FREE_PYTHON) WHEEL="$$(echo target/freethreaded/dist/*.whl)"

lint: build  ## rustfmt, clippy, ruff, mypy strict, stubtest of the extension's stub
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest kvcache._core

format:  ## format Rust and Python in place
	cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet .

docs: build  ## the documentation in docs/_build/html; a warning is an error
	$(PRELOAD) $(BIN)/sphinx-build -W --keep-going -n -b html -q docs docs/_build/html

bench: build  ## lookups and inserts against libc memcmp; fails where a bar is missed
	$(BIN)/python -m pytest benches --benchmark-only --benchmark-disable-gc $(PYTEST_ARGS)

bench-memory: build  ## what evictions give back, exact allocator and default pool; fails where a bar is missed
	$(PRELOAD) $(BIN)/python benches/memory/run.py --transformers --output benches/results/memory_exact.txt
	$(PRELOAD) $(BIN)/python benches/memory/run.py --transformers --pool --output benches/results/memory_pool.txt

bench-hit-rates: build  ## replay real traces (TRACES=folder); fails where off the reference
	$(BIN)/python benches/replay/hit_rates.py $(TRACES)

bench-segments: build  ## what segment_tokens costs and buys; writes benches/results/segments.md
	$(PRELOAD) $(BIN)/python benches/memory/segments.py

profile: build  ## where the index's time goes (Linux, needs perf); writes benches/results/profile.md
	$(BIN)/python benches/profile.py

bench-server: build  ## mlx_lm.server against kvcache serve; fails above half of the prefill tokens
	$(PRELOAD) $(BIN)/python benches/server/run.py --output benches/results/server.md

bench-stops: build  ## 50 stops of kvcache serve of each kind by each signal; fails unless all end with status 0
	$(PRELOAD) $(BIN)/python -m benches.server.stops

bench-ranks: build  ## what agreement of two ranks adds to a fetch; fails where a bar is missed
	$(BIN)/python -m benches.ranks.fetch

bench-disk:  ## record writes and reads against a plain read of the same disk, in DISK=folder
	cargo run --release --quiet --package kvcache-disk --example segments -- $(or $(DISK),target/bench-disk)

bench-peers: build  ## prefix indexes of other projects against ours; writes benches/results/peers.md
	-$(BIN)/python -m pip install --quiet --no-deps --target target/peers/python vllm-mlx
	$(BIN)/python -m benches.peers

# Panics name source files: those of the dependencies without the builder's home. `--sdist` would build the
# wheel from the unpacked sdist, whose files are all of one date, and Cargo would take them for built already.
wheel: $(VENV)/.created  ## abi3 wheel and sdist in dist/
	RUSTFLAGS="--remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo --remap-path-prefix=$(CURDIR)=kvcache" \
	  $(BIN)/maturin build --release --locked --strip --target-dir target/wheel --out $(DIST)
	$(BIN)/maturin sdist --out $(DIST)

clean:  ## remove build outputs, keep .venv
	cargo clean
	rm -rf dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
