# Every target works as the first command in a fresh checkout. Needs: Python 3.10 or newer with venv, a C++20 compiler, make.
PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
SECONDS_STRESS ?= 20
SECONDS_FUZZ ?= 30

VENV := .venv
PY := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

# The same list as build-system.requires in pyproject.toml, and the tools that it calls.
BUILD_REQUIRES := 'scikit-build-core>=0.11' 'nanobind>=2.9' 'cmake>=3.25' 'ninja>=1.11'
# A build directory that stays makes the next build incremental.
INSTALL := $(PY) -m pip install -q --no-build-isolation --config-settings=build-dir=build/python \
	--config-settings=cmake.define.KVFIX_WERROR=ON
NATIVE_SOURCES := $(shell find cpp/core cpp/bindings cmake -type f 2>/dev/null) CMakeLists.txt pyproject.toml

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready:
	@echo "creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, this is " + sys.version)'
	@$(PYTHON) -m venv $(VENV) || { echo "python venv failed; on Debian: apt install python3-venv python3-dev"; exit 1; }
	@$(PY) -m pip install -q $(BUILD_REQUIRES)
	@touch $@

$(VENV)/.built: $(VENV)/.ready $(NATIVE_SOURCES)
	@echo "building and installing the package (editable)"
	@$(INSTALL) -e '.[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.built
	@echo "installing the development tools"
	@$(INSTALL) -e '.[dev]'
	@touch $@

.PHONY: build
build: $(VENV)/.built  ## build the extension and install the package into .venv, editable

.PHONY: verify
verify: build  ## show two-phase admission beside per-request admission on a small workload
	@$(VENV)/bin/trtllm-kvfix replay --generate small --compare

.PHONY: test
test: build  ## run the Python tests, and the C++ tests where GoogleTest is installed
	@$(PY) -m pytest
	@tools/cpp_tests.sh

.PHONY: clean
clean:  ## remove .venv and everything built
	@rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
