# make build   builds the examples with Bazel and runs one program
# make test    passes all tests
# make test-quick  passes those without PyTorch and Bazel, and lowers one program, in less than two minutes
# make venv    the driver and the developers' tools in .venv
# make lint    what CI checks besides
# make wheel   the driver as a wheel, the same bytes for the same commit

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV := .venv
# Those of the driver's extras that the tests need.
EXTRAS := ethos-u huggingface openvino
comma := ,
LOCKS := toolchain/requirements.lock $(EXTRAS:%=toolchain/requirements-%.lock)
BAZEL = $$(tools/find_bazel.sh)
BUILDIFIER := node_modules/.bin/buildifier
BUILDGRID := .cache/buildgrid
AUDIT := .cache/audit
COVERAGE := .cache/coverage
# What `make build` builds with Bazel, for tests/bazel.
DISK_CACHE := .cache/bazel
STARLARK = $(shell git ls-files '*.bzl' 'BUILD' '*/BUILD' '*WORKSPACE' '*MODULE.bazel')

.PHONY: build test test-quick test-soak coverage fuzz faults venv lint format bench clean wheel licenses audit

build: venv
	@echo "== Bazel builds the examples. The first time it also builds the toolchain, which takes a few minutes."
	bazel=$(BAZEL); $$bazel build --disk_cache=$(CURDIR)/$(DISK_CACHE) //examples/...
	@echo "== One of them in ExecuTorch's runtime: five tokens in, scores of the next token out."
	@# The runtime's native libraries log to standard error what they look for on other machines.
	@$(VENV)/bin/python examples/run_program.py bazel-bin/examples/tiny_lm/tiny_lm.pte prefill '[[72, 101, 108, 108, 111]]' \
	  2> $(VENV)/run.log || { cat $(VENV)/run.log >&2; exit 1; }

test: venv $(BUILDGRID)/ready
	nginx=$$(tools/find_nginx.sh); bazel=$(BAZEL); NGINX=$$nginx BAZEL=$$bazel $(VENV)/bin/python -m pytest --numprocesses 2

# All tests without PyTorch and Bazel, and a program that is lowered, run and compared with PyTorch.
test-quick: venv
	$(VENV)/bin/python -m pytest --numprocesses 2 -m "not (torch or bazel) or quick"

# Long forms of tests that `make test` runs with fewer repetitions.
test-soak: venv
	$(VENV)/bin/python -m pytest -m soak

# The driver's lines and branches that tests reach in their own processes. coverage.py would add code that runs when Python
# starts, which is in every key: so it is no package of .venv.
coverage: venv $(COVERAGE)/ready
	$(VENV)/bin/python -c 'import sys; sys.path.append("$(COVERAGE)/site"); import pytest; sys.exit(pytest.main())' \
	  --numprocesses 2 -m "not (bazel or soak)" -p pytest_cov --cov --cov-report=term --cov-report=html:$(COVERAGE)/html $(TESTS)

$(COVERAGE)/ready: Makefile
	$(VENV)/bin/pip install --quiet --upgrade --no-deps --target $(COVERAGE)/site coverage==7.17.3 pytest-cov==7.1.0
	touch $@

# Campaigns, of which `make test` runs a short form. Do not edit the driver meanwhile: it is in each key.
fuzz: venv
	$(VENV)/bin/pip install --quiet --requirement tests/fuzz/requirements.txt
	$(VENV)/bin/python -m tests.fuzz.run --seconds 1200 --jobs 2 --results benchmarks/results/fuzz.json

faults: venv
	$(VENV)/bin/python -m tests.faults.run_campaign --kills 200 --faults 200 --seconds 3600 > benchmarks/results/faults.json

venv: $(VENV)/ready

# The versions are those of the lock, so that the command line and Bazel make the same key.
$(VENV)/ready: $(LOCKS) tests/requirements.txt pyproject.toml tools/find_python.sh
	python=$$(tools/find_python.sh); $$python -m venv --clear $(VENV)
	sed -n 's/ *\\$$//; s/^\([a-z0-9][^ ]*==[^ ]*\)$$/\1/p' $(LOCKS) > $(VENV)/constraints.txt
	$(VENV)/bin/pip install --quiet $$(grep '^torch==' $(VENV)/constraints.txt)
	$(VENV)/bin/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[$(subst $() $(),$(comma),$(EXTRAS))]' \
	  --requirement tests/requirements.txt
	touch $@

# A remote cache for the tests, apart from all else: what it needs must not touch what the driver needs.
$(BUILDGRID)/ready: tests/remote/requirements.txt tools/find_python.sh
	python=$$(tools/find_python.sh); $$python -m venv --clear $(BUILDGRID)
	$(BUILDGRID)/bin/pip install --quiet --requirement tests/remote/requirements.txt
	touch $@

lint: venv $(BUILDIFIER)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	! git grep -nE '^(<<<<<<<|>>>>>>>) '   # of a merge
	$(BUILDIFIER) -config=.buildifier.json $(STARLARK)
	$(VENV)/bin/etbuild validate $$(git ls-files 'examples/*.yaml' ':!examples/third_party_backend')

format: venv $(BUILDIFIER)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(BUILDIFIER) -config=.buildifier.json -mode=fix $(STARLARK)

$(BUILDIFIER):
	tools/find_npm.sh install --no-save --no-audit --no-fund --silent @bazel/buildifier@8.2.1

# The first takes 40 minutes on two processors, most of them the plain script's.
bench: venv
	$(VENV)/bin/pip install --quiet --constraint $(VENV)/constraints.txt --requirement benchmarks/requirements.txt
	$(VENV)/bin/python benchmarks/lowering/run.py --write benchmarks/results
	$(VENV)/bin/python benchmarks/overhead/run.py
	bazel=$(BAZEL); BAZEL=$$bazel $(VENV)/bin/python benchmarks/incremental/run.py

wheel: venv
	$(VENV)/bin/python tools/build_wheel.py dist

licenses: venv
	$(VENV)/bin/python tools/list_licenses.py

# Asks the package index for advisories. A package that the index has no answer for fails the audit.
audit: $(AUDIT)/ready
	$(AUDIT)/bin/pip-audit --strict --disable-pip $(LOCKS:%=--requirement %)

$(AUDIT)/ready: tools/find_python.sh
	python=$$(tools/find_python.sh); $$python -m venv --clear $(AUDIT)
	$(AUDIT)/bin/pip install --quiet pip-audit
	touch $@

clean:
	rm -rf $(VENV) $(BUILDGRID) $(DISK_CACHE) node_modules
	bazel=$(BAZEL); $$bazel clean
