# Every target works as the first command in a fresh checkout. You need Python 3.10 or newer with venv and headers, a
# C++20 compiler and make. The rest is installed into .venv.
PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
# Warnings are errors in CI only, because a compiler newer than ours must not break a user's build.
WERROR ?= $(if $(CI),ON,OFF)
STRESS_SECONDS ?= 10
STRESS_SEED ?= 1
FUZZ_SECONDS ?= 20
FUZZ_SEED ?= 1
# Another one each time; what failed prints it.
LONG_SEED ?= $(shell date +%s)
# The torch that pip installs. A build for CPUs is enough for everything except a GPU.
TORCH ?= torch

VENV := .venv
PY := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
# Tests start a thousand interpreters, and import the stand-in as often. Compiled once, also where bytecode is not
# wanted beside the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

# The same as build-system.requires in pyproject.toml (tests/test_package.py compares them), and the tools that these
# call.
BUILD_REQUIRES := 'scikit-build-core>=0.11' 'nanobind>=2.9'
BUILD_TOOLS := 'cmake>=3.25' 'ninja>=1.11'
# The virtual environment's own: Python 3.10 may bring a pip that knows neither --config-settings nor --python.
PIP := 'pip>=23.1'
# A build directory that stays makes the next build incremental.
INSTALL := $(PY) -m pip install --disable-pip-version-check --no-build-isolation \
	--config-settings=build-dir=build/python --config-settings=cmake.define.KVFIX_WERROR=$(WERROR)
# hostrace is a package of its own, in the folder watch.
INSTALL_HOSTRACE := $(PY) -m pip install --disable-pip-version-check --no-build-isolation \
	--config-settings=build-dir=$(CURDIR)/build/hostrace --config-settings=cmake.define.HOSTRACE_WERROR=$(WERROR)
NATIVE_SOURCES := $(shell find cpp cmake licenses -type f -not -path 'cpp/tests/*' -not -path 'cpp/fuzz/*') CMakeLists.txt pyproject.toml
HOSTRACE_SOURCES := $(shell find watch/cpp/hostrace -type f) watch/CMakeLists.txt watch/pyproject.toml
CPP_SOURCES := $(shell find cpp bench tests/bound watch -name '*.h' -o -name '*.cc')
TIDY_SOURCES := $(filter-out cpp/tests/% cpp/fuzz/%,$(wildcard cpp/*/*.cc))
TIDY_HOSTRACE := $(wildcard watch/cpp/hostrace/*.cc)
GPU_CHECKS := $(wildcard integration/gpu/device/*.cc)
# How many states clang's analyzer looks at in a function. Its own 225000 take two thirds of lint's time: ci-long's.
TIDY_STATES ?= 20000
tidy = clang-tidy --quiet $(addprefix --extra-arg=,-Xclang -analyzer-config -Xclang max-nodes=$(TIDY_STATES))

# $(call cpp_configure,NAME,OPTIONS) configures the C++ side alone in build/NAME; cpp_build then builds TARGET, or everything.
cpp_configure = cmake -S . -B build/$(1) -G Ninja --log-level=NOTICE -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	-DKVFIX_WERROR=$(WERROR) $(2)
cpp_build = $(cpp_configure) && cmake --build build/$(1) $(if $(3),--target $(3)) -- --quiet
# Builds the C++ tests, which need GoogleTest. GTEST_ARGS may name a mirror.
tests = -DKVFIX_BUILD_TESTS=ON -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='$(quick_flags)' $(GTEST_ARGS)
# A sanitized build runs only on the simulated device, so compiling CUDA kernels would waste time.
no_gpu := -DKVFIX_KERNELS=OFF
# With -O2 and all of -g the compiler needs almost twice as long. Lines are enough for a stack. With -Og and
# AddressSanitizer, gcc takes buffers that are given to be written for variables that are read. clang, which builds the
# fuzzers, does not know the warning.
quick_flags := -Og -g1 -DNDEBUG -Wno-unknown-warning-option -Wno-maybe-uninitialized
sanitized = $(no_gpu) -DKVFIX_SANITIZE=$(1) -DCMAKE_CXX_FLAGS_RELWITHDEBINFO='$(quick_flags)'
# ThreadSanitizer of older compilers cannot place its shadow where newer kernels randomize the address space.
FIXED_ADDRESSES := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)
# $(call stress,HOW) runs each stress program in the way HOW, which ends with the folder of its build.
STRESS := stress_block_manager stress_request_books
stress = for program in $(STRESS); do \
	$(1)/bin/$$program --seconds $(STRESS_SECONDS) --threads 4 --seed $(STRESS_SEED) || exit 1; done

.NOTPARALLEL:
.PHONY: help bound build verify test gtest test-py test-quick test-cpp test-aarch64 test-dist test-mpi test-nixl test-mooncake test-chaos test-ray test-dynamo test-upstream test-clients test-pages docs lint format stubs bench bench-against bench-cpp tsan race-control asan fuzz mutants ci ci-python ci-native ci-long clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready:
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version)'
	@$(PYTHON) -m venv $(VENV) || { echo "on Debian and Ubuntu: apt install python3-venv python3-dev"; exit 1; }
	@$(PY) -m pip install -q --disable-pip-version-check $(PIP)
	@$(PY) -m pip install -q --disable-pip-version-check $(BUILD_REQUIRES) $(BUILD_TOOLS)
	@touch $@

FORCE:

# The editable install knows modules by their paths, so a module that is added, removed or moved needs another install.
$(VENV)/.modules: $(VENV)/.ready FORCE
	@now=$@.$$$$; find trtllm_kvfix watch/src -name '*.py' | LC_ALL=C sort >$$now; cmp -s $$now $@ && rm $$now || mv $$now $@

$(VENV)/.built: $(VENV)/.ready $(VENV)/.modules $(NATIVE_SOURCES)
	@echo "building and installing the package"
	@$(PY) tools/build_progress.py compiled -- $(INSTALL) -v -e '.[test]'
	@touch $@

$(VENV)/.hostrace: $(VENV)/.ready $(VENV)/.modules $(HOSTRACE_SOURCES)
	@echo "building and installing hostrace"
	@$(PY) tools/build_progress.py compiled -- $(INSTALL_HOSTRACE) -v -e watch
	@touch $@

$(VENV)/.dev: $(VENV)/.ready pyproject.toml
	@echo "installing the development tools"
	@$(INSTALL) -q -e '.[dev,report]'
	@touch $@ $(VENV)/.built

# The bound classes of upstream, declared as upstream declares them. They are for tests only, and not part of the
# package.
$(VENV)/.bound: $(VENV)/.ready $(shell find tests/bound -name '*.cc' -o -name '*.h' -o -name CMakeLists.txt)
	@echo "building the bound classes for the tests"
	@cmake -S tests/bound -B build/bound -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DPython_EXECUTABLE=$(CURDIR)/$(PY) && $(PY) tools/build_progress.py compiled -- cmake --build build/bound
	@touch $@

bound: $(VENV)/.bound  ## build upstream's bound classes as the tests declare them

build: $(VENV)/.built $(VENV)/.hostrace  ## build both packages and install them into .venv, editable

verify: build  ## H1, H2, H5 and H9 beside their fixes, and H13, on a GPU or a simulated device; what users read; admission, both ways
	@echo; echo "1 of 3: hazards beside their fixes (trtllm-kvfix verify)"; echo
	@trtllm-kvfix verify
	@echo; echo "2 of 3: what users read without each fix (trtllm-kvfix demo)"; echo
	@trtllm-kvfix demo
	@echo; echo "3 of 3: H3, one request admitted at a time and a batch at once (trtllm-kvfix replay --compare)"; echo
	@trtllm-kvfix replay --generate small --compare

test: $(if $(WITHOUT_CPP),test-py,gtest test-py test-cpp)  ## run all tests; WITHOUT_CPP=1: without those in C++, which need GoogleTest
	@$(if $(WITHOUT_CPP),echo "The C++ tests did not run: WITHOUT_CPP is set.")

# Runs first, so that nobody learns after a quarter of an hour of tests that those in C++ cannot run.
gtest: $(VENV)/.ready  ## find GoogleTest (Debian: libgtest-dev), or fetch it
	@echo "looking for GoogleTest"
	@$(call cpp_configure,tests,$(tests))

# A process finds its next tests when it has none left, so that all end at the same time. There is one more than there
# are jobs, because a sixth of the time goes by while tests wait: for servers that start, and for what must not happen.
PYTEST := $(PY) -m pytest -n $(shell expr $(JOBS) + 1) --dist worksteal

test-py: build bound  ## run the Python tests
	@$(PYTEST)

# No servers, no other processes of ours, no watched programs, and no figure of a page that is computed by a run.
QUICK := $(addprefix tests/,bound claims core docs engine events executor managers metrics prose staging tools/doctor)
NOT_QUICK := claims/test_shown.py claims/test_trees.py docs/test_readme_shows.py $(addprefix test_,examples.py going_back.py recording.py skips.py)
test-quick: build bound  ## what to run after each edit: core, managers, staging, the fixes' controls, pages and house rules
	@$(PYTEST) $(QUICK) $(addprefix --ignore=tests/,$(NOT_QUICK)) $(filter-out $(addprefix tests/,$(NOT_QUICK)),$(wildcard tests/test_*.py))

test-cpp: gtest  ## run the C++ tests
	@echo "building the C++ tests"
	@$(PY) tools/build_progress.py compiled -- cmake --build build/tests
	@ctest --test-dir build/tests --output-on-failure --no-tests=error -j $(JOBS)

test-aarch64: build  ## compile the C++ tests and hostrace for aarch64 and run them under QEMU; not part of ci
	@JOBS=$(JOBS) integration/dist/aarch64.sh -DKVFIX_WERROR=$(WERROR)

# In environments of their own, so that nothing installed for development can stand in for something that a user lacks.
test-dist: $(VENV)/.dev build  ## build sdists and wheels, and run the commands from them with the lowest and newest dependencies
	@$(PY) -m pytest integration/dist

test-mpi: build bound  ## run the tests with ranks of their own; with CI set, Open MPI must be there
	@$(if $(CI),command -v mpirun >/dev/null || { echo "mpirun is missing: apt install openmpi-bin"; exit 1; })
	@$(PY) -m pip install -q --disable-pip-version-check 'mpi4py>=4,<5'
	@$(PY) -m pytest integration/mpi

# In a folder of its own, because tests of the overlay need an environment without NIXL. It comes without torch.
test-nixl: build bound  ## run the tests with NIXL's own agents; fetches a wheel of 67 MB
	@[ -d build/nixl ] || $(PY) -m pip install -q --disable-pip-version-check --no-deps --target build/nixl \
		'nixl>=1.3,<2' 'nixl-cu12>=1.3,<2'
	@$(PY) -m pytest integration/nixl

# In a folder of its own and without its dependencies, which the store's client and master do not need. Where CI is set,
# a test that is skipped for want of it fails (tests/skips.py).
MOONCAKE_HERE := $(filter x86_64 aarch64,$(shell uname -m))
test-mooncake: build bound  ## run the remote tier on Mooncake Store itself; fetches a wheel of 47 MB
	@$(if $(MOONCAKE_HERE)$(CI),[ -d build/mooncake ] || $(PY) -m pip install -q --disable-pip-version-check --no-deps \
		--target build/mooncake 'mooncake-transfer-engine-non-cuda>=0.3.13$(comma)<0.4',echo \
		"no wheel of Mooncake Store for $$(uname -m): its tests are skipped")
	@$(PY) -m pytest integration/mooncake --ignore integration/mooncake/test_chaos.py

test-chaos: test-mooncake  ## stop, kill and restart parts of a Mooncake Store while engines serve; part of ci-long
	@$(PY) -m pytest integration/mooncake/test_chaos.py

test-ray: build bound  ## run the tests with Ray's actors; fetches a wheel of 79 MB
	@[ -d build/ray ] || $(PY) -m pip install -q --disable-pip-version-check --target build/ray ray
	@$(PY) -m pytest integration/ray

# In a folder of its own and without its dependencies, which the indexer does not need.
test-dynamo: build  ## let Dynamo's own KV indexer hear our events; fetches a wheel, 227 MB unpacked
	@[ -d build/dynamo ] || $(PY) -m pip install -q --disable-pip-version-check --no-deps --target build/dynamo ai-dynamo-runtime
	@$(PY) -m pytest integration/dynamo

# UPSTREAM is a checkout, or a folder with a tree for each era; ERA says whose bound classes a checkout expects.
test-upstream: build bound  ## run the overlay on TensorRT-LLM's own Python: UPSTREAM=DIR [ERA=D]; fetches torch
	@$(PY) -m pip install -q --disable-pip-version-check $(TORCH)
	@$(PY) -m integration.upstream --tree $(UPSTREAM) $(if $(ERA),--era $(ERA)) $(UPSTREAM_ARGS)

# torch for CPUs comes from its own index. The clients come last and without their dependencies, which are CUDA's
# libraries.
CLIENTS := kvbm==1.6.1 nixl==1.3.2 nixl-cu12==1.3.2 lmcache==0.5.6
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
test-clients: build bound  ## run KVBM's and LMCache's own connectors beside ours; fetches wheels of about 0.5 GB
	@[ -d build/clients/kvbm ] || { \
		$(PY) -m pip install -q --disable-pip-version-check --extra-index-url $(TORCH_INDEX) --target build/clients \
			-r integration/clients/requirements.txt && \
		$(PY) -m pip install -q --disable-pip-version-check --no-deps --target build/clients $(CLIENTS); }
	@$(PY) -m pytest integration/clients

test-pages: build  ## look at the pages of verify, demo and watch in Chromium; with CI set, it must be there
	@$(PY) -m pytest integration/pages

$(VENV)/.docs: $(VENV)/.built pyproject.toml
	@echo "installing what builds the documentation"
	@$(INSTALL) -q -e '.[docs]'
	@touch $@

# Strict: a dead link, or a page that is in no menu, fails the build. The variable silences an advertisement of the
# theme.
docs: $(VENV)/.docs  ## build the documentation as a site, in build/docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet
	@echo "the site is in build/docs; look at it with $(PY) -m http.server -d build/docs"

# What only a GPU can run is compiled at least.
lint: $(VENV)/.dev build  ## ruff, mypy, clang-format, clang-tidy
	@ruff check
	@ruff format --check
	@mypy
	@clang-format --dry-run --Werror $(CPP_SOURCES)
	@printf '%s\n' $(TIDY_SOURCES) | xargs -P $(JOBS) -n 1 $(tidy) -p build/python
	@printf '%s\n' $(TIDY_HOSTRACE) | xargs -P $(JOBS) -n 1 $(tidy) -p build/hostrace
	@printf '%s\n' $(GPU_CHECKS) | xargs -P $(JOBS) -n 1 $(CXX) -std=c++20 -fsyntax-only -Icpp

format: $(VENV)/.dev  ## rewrite Python and C++ sources in the house format
	@ruff check --fix-only --quiet
	@ruff format --quiet
	@clang-format -i $(CPP_SOURCES)

stubs: build  ## rewrite trtllm_kvfix/_core.pyi from the built extension
	@$(PY) -m nanobind.stubgen -q -m trtllm_kvfix._core -p tools/stub_patterns.txt -o trtllm_kvfix/_core.pyi

bench: build bound  ## measure and append to bench/results; BENCH_ARGS=--quick for a look
	@$(PY) bench/run_all.py $(BENCH_ARGS)

# The other commit is compiled once, which takes a minute or two.
bench-against: build  ## compare quick figures with another commit: REV=HEAD~1
	@$(if $(REV),,echo "which commit? make bench-against REV=HEAD~1"; exit 2)
	@$(PY) bench/against.py $(REV) $(BENCH_ARGS)

bench-cpp: $(VENV)/.ready  ## measure the core without Python; needs Google Benchmark
	@$(call cpp_build,bench,-DCMAKE_BUILD_TYPE=Release -DKVFIX_BUILD_BENCH=ON)
	@build/bench/bin/kvfix_bench $(BENCH_CPP_ARGS)

# Left out are those that take minutes there and have one thread. Under AddressSanitizer they run.
ONE_THREAD := ^(SimDeterminism|fuzz_)
tsan: $(VENV)/.ready  ## C++ tests and stress under ThreadSanitizer
	@$(call cpp_build,tsan,$(tests) $(call sanitized,thread) -DKVFIX_BUILD_WORLDS=OFF)
	@TSAN_OPTIONS=halt_on_error=1 $(FIXED_ADDRESSES) ctest --test-dir build/tsan --output-on-failure --no-tests=error -j $(JOBS) \
		-E '$(ONE_THREAD)'
	@$(call stress,TSAN_OPTIONS=halt_on_error=1 $(FIXED_ADDRESSES) build/tsan)

race-control: $(VENV)/.ready  ## the stress without the lock, which must fail: shows that the stress can see a race
	@$(call cpp_build,race-control,$(tests) $(call sanitized,thread) -DKVFIX_NO_LOCK=ON,$(STRESS))
	@$(call stress,tools/must_race.sh $(FIXED_ADDRESSES) build/race-control)

asan: $(VENV)/.ready  ## C++ tests and stress under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(call cpp_build,asan,$(tests) $(call sanitized,address$(comma)undefined) $(if $(WITH_BENCH),-DKVFIX_BUILD_BENCH=ON))
	@ctest --test-dir build/asan --output-on-failure --no-tests=error -j $(JOBS)
	@$(call stress,build/asan)
	@$(if $(WITH_BENCH),build/asan/bin/kvfix_bench --benchmark_min_time=0.001)

# With STEPS=10000000 only the worlds, without sanitizers: a million steps take about a quarter of a minute.
fuzz: $(VENV)/.ready  ## fuzz the block manager for a while, or for STEPS=N; the first needs clang with its libFuzzer
ifdef STEPS
	@$(call cpp_build,worlds,-DKVFIX_BUILD_WORLDS=ON $(no_gpu),fuzz_worlds)
	@build/worlds/bin/fuzz_worlds --steps $(STEPS) --seed $(FUZZ_SEED)
else
	@$(call cpp_build,fuzz,-DKVFIX_BUILD_FUZZ=ON $(call sanitized,address$(comma)undefined) -DCMAKE_CXX_COMPILER=clang++)
	@mkdir -p build/fuzz/corpus
	@build/fuzz/bin/fuzz_block_manager -seed=$(FUZZ_SEED) -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/ \
		build/fuzz/corpus cpp/fuzz/inputs
	@build/fuzz/bin/fuzz_worlds --seconds $(FUZZ_SECONDS) --steps 1000000000 --seed $(FUZZ_SEED)
endif

mutants: build bound  ## plant mistakes in the C++ code and require that the tests notice; MUTANTS_ARGS='--only keep'; about a quarter of an hour
	@$(PY) -m tests.mutants.run $(MUTANTS_ARGS)

# $(call half,python,$(MAKE)) leaves build/ci-python.passed if all of it passed.
half = rm -f build/ci-$(1).passed; { $(2) ci-$(1) </dev/null 2>&1 && touch build/ci-$(1).passed; }

# Side by side, because most Python tests keep one core busy. Everything that both halves build comes first. As a pipe, in
# which nothing flows: ctrl-C ends both halves, and would not reach a job in the background. What failed comes last,
# because many who run this keep only the end of what it prints.
ci: lint docs bound gtest  ## everything that a change must pass
	@{ $(call half,native,$(MAKE)) >build/ci-native.log; } | \
		{ $(call half,python,$(MAKE)) | tee build/ci-python.log; }; \
	cat build/ci-native.log; failed=; \
	for half in native python; do [ -e build/ci-$$half.passed ] || { \
		failed=1; echo; echo "make ci-$$half failed. Its last lines:"; tail -n 24 build/ci-$$half.log; }; done; \
	[ -z "$$failed" ]

ci-python: test-py test-pages test-dist test-mpi test-nixl test-mooncake verify  ## the half of ci that is Python's

# The C++ tests run under both sanitizers here. `make test` runs them without: a third build takes as long as either. The
# benchmarks run for a moment, to show that they still compile and that their checks of values still hold.
ci-native: WITH_BENCH := 1
ci-native: tsan race-control asan fuzz  ## the half of ci that is C++'s

AARCH64_HERE := $(and $(shell command -v aarch64-linux-gnu-g++),$(shell command -v qemu-aarch64))
# Weekly in the workflow, and before a release: hours on two cores. What `make ci` does with few examples, seconds and
# requests, it does with many: state machines, long walks, stress, fuzzing, traffic, clang's analyzer; and
# mutants and aarch64, which `make ci` leaves out.
ci-long: build bound gtest  ## soak and stress: state machines, races, fuzzing, traffic and mutants, for hours
	@HYPOTHESIS_PROFILE=fuzz $(PYTEST) tests/core tests/offload/test_state_machine.py tests/offload/remote/test_state_machine.py
	@KVFIX_TRAFFIC_REQUESTS=10000 $(PYTEST) tests/offload/test_stand_in_traffic.py
	@KVFIX_TRAFFIC_REQUESTS=1000 $(PYTEST) tests/offload/remote/test_traffic.py
	@KVFIX_ORDER_ROUNDS=1000 $(PYTEST) tests/offload/test_order.py
	@KVFIX_SOAK_REQUESTS=200000 $(PYTEST) tests/offload/test_soak.py
	@$(if $(MOONCAKE_HERE),KVFIX_CHAOS_SECONDS=70 KVFIX_CHAOS_SEED=$(LONG_SEED) $(MAKE) test-chaos)
	@for seed in 2 3 4 5 6 7 8 9; do TORTURE_SEED=$$seed TORTURE_FORKS=16 $(PYTEST) tests/torture || exit 1; done
	@TORTURE_STEPS=10000 $(PYTEST) tests/torture/test_v1_watched.py tests/torture/test_v2_watched.py -k silent_where
	@TORTURE_STEPS=10000 $(PYTEST) tests/torture/test_v2_attack.py -k "trim and with_all_fixes or F- and costs_time"
	@TORTURE_ROUNDS=400 $(PYTEST) tests/fixes/test_faults.py -k "F-"
	@$(PY) -m tests.engine.long_run --requests 10000
	@$(MAKE) lint TIDY_STATES=225000
	@$(MAKE) tsan race-control asan STRESS_SECONDS=600 STRESS_SEED=$(LONG_SEED)
	@$(MAKE) fuzz FUZZ_SECONDS=1200 FUZZ_SEED=$(LONG_SEED)
	@$(if $(AARCH64_HERE),$(MAKE) test-aarch64,echo "test-aarch64 is skipped: g++-aarch64-linux-gnu or qemu-user is missing")
	@$(MAKE) mutants

clean:  ## remove .venv and everything built
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

comma := ,
