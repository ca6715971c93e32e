# Everything runs from a fresh checkout; .ci/setup makes what is missing.

.PHONY: help demo test test-all test-part test-clients coverage test-matrix check bench bench-gpu docs release clean node-tree node-deb node-rpm
.NOTPARALLEL:

# A Python that measures coverage or an active virtual environment must not leak in.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PATH := $(CURDIR)/.venv/bin:$(PATH)

SHELL_SCRIPTS = $(wildcard .ci/setup .ci/run hooks/*.sh tests/demo/*.sh tests/gpu/*.sh tests/matrix/*.sh packaging/*.sh)

help:
	@echo 'make demo    pack small trainings on this machine, with a private Slurm where one can be installed'
	@echo 'make test    set-up, static checks, and the tests that a change needs'
	@echo 'make test-all  all tests: also kills, races, histories, frameworks, the demonstration'
	@echo 'make test-part PART=3  one of seven parts of what make test leaves out'
	@echo 'make test-clients  torchrun, Lightning and submitit as members, by their own files'
	@echo 'make coverage  all tests, with line coverage'
	@echo 'make test-matrix  the main paths on other releases of Slurm and Python; ALL=1: all tests'
	@echo 'make check   static checks only: ruff, mypy, import-linter, shellcheck'
	@echo 'make bench   measure csub and its runner on a private Slurm; MARKDOWN=FILE keeps the tables'
	@echo 'make bench-gpu WHAT=policies PACKAGES=DIR OUT=DIR  measure on a GPU, as root (tests/gpu/run.sh)'
	@echo 'make docs    the documents as a site that needs no network, in dist/docs and as an archive'
	@echo 'make release the wheel and source archive of csub and of the lab, in dist/'
	@echo 'make node-tree, node-deb, node-rpm  what nodes need for the hooks, in dist/ (docs/admin.md)'
	@echo 'make clean   remove what these targets made, .venv included'

demo:
	@sh .ci/setup demo
	@sh tests/demo/demo.sh

# Most tests wait for Slurm, so several run at a time. A file stays together, for its tests share
# what it set up, and files come as tests/conftest.py orders them.
WORKERS ?= 4

RUN_TESTS = python -m tests.again "--along=-n $(WORKERS) --dist loadfile --no-loadscope-reorder"

# The static checks run along with the tests, and are told where they fail.
test:
	@sh .ci/setup test
	@log=$$(mktemp); make --no-print-directory run-checks >"$$log" 2>&1 & checks=$$!; \
	trap 'kill $$checks 2>/dev/null' INT TERM; \
	$(RUN_TESTS) --suite=quick $(PYTEST); status=$$?; \
	wait $$checks || { cat "$$log"; echo 'make check has failed'; status=1; }; \
	rm -f "$$log"; exit $$status

test-all:
	@sh .ci/setup test
	@$(MAKE) --no-print-directory run-checks
	@$(RUN_TESTS) $(PYTEST)

test-part:
	$(if $(PART),,$(error PART is missing: make test-part PART=1, up to 7))
	@sh .ci/setup test
	@$(RUN_TESTS) --suite=$(PART) $(PYTEST)

# Programs that go by SLURM_JOB_ID, each by its own file; the parts run all other clients, too.
CLIENTS = tests/clients/test_own_numbers.py tests/clients/test_lightning_requeue.py \
	tests/clients/test_clients.py
test-clients:
	@sh .ci/setup test
	@$(RUN_TESTS) $(CLIENTS) -k 'not test_clients or submitit' $(PYTEST)

# Measuring nearly doubles the time that each program takes to start.
coverage:
	@sh .ci/setup test
	@rm -rf .coverage.d && mkdir -m 777 .coverage.d
	@python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term

# All that can run there, with ALL=1. One release, and words for pytest:
# make test-matrix RELEASE=26.05 PYTEST='tests/cluster -k srun'
test-matrix:
	@sh .ci/setup matrix
	@python -B -m tests.matrix $(if $(ALL),--all) $(addprefix --release=,$(RELEASE)) $(PYTEST)

check:
	@sh .ci/setup check
	@$(MAKE) --no-print-directory run-checks

.PHONY: run-checks
run-checks:
	ruff check .
	ruff format --check .
	mypy --strict
	lint-imports --no-cache
	shellcheck $(SHELL_SCRIPTS)

bench:
	@sh .ci/setup bench
	@python -m benchmarks $(if $(MARKDOWN),--markdown '$(MARKDOWN)') $(GROUPS)

WHAT ?= policies
PACKAGES ?= -
OUT ?= build/gpu
bench-gpu:
	@sh tests/gpu/run.sh $(PACKAGES) $(OUT) $(WHAT)

VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' slurm_colloc/__init__.py)
SITE = slurm_colloc-docs-$(VERSION)

# Sphinx names each broken link and ends with 1; a page is made anew, for some come of the program.
docs:
	@sh .ci/setup docs
	@rm -rf dist/docs build/docs
	@python -B -m sphinx -q -W --keep-going -j auto -c docs/site -d build/docs . dist/docs
	@CSUB_BUILT_SITE=dist/docs python -B -m pytest tests/packaging/test_docs_site.py
	@tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 \
		--transform='s,^docs,$(SITE),' -C dist -czf dist/$(SITE).tar.gz docs
	@echo 'dist/docs/index.html, dist/$(SITE).tar.gz'

# Each wheel is built from its source archive, as those do who install from that.
release:
	@sh .ci/setup check
	@rm -f dist/slurm_colloc-$(VERSION)* dist/slurm_colloc_lab-$(VERSION)*
	@python -B -m build --no-isolation --outdir dist . >/dev/null
	@python -B -m build --no-isolation --outdir dist lab >/dev/null
	@ls -l dist/slurm_colloc-$(VERSION)* dist/slurm_colloc_lab-$(VERSION)*

# What nodes get, built with the Python that comes first: .venv's, or any from 3.11 on that has
# nvidia-ml-py. packaging/README.md tells how to build it for other machines.
.PHONY: build/node
build/node:
	@mkdir -p build
	@python3 -B packaging/node_tree.py build/node

node-tree: build/node
	@python3 -B packaging/node_package.py tar build/node dist

node-deb: build/node
	@python3 -B packaging/node_package.py deb build/node dist

node-rpm: build/node
	@python3 -B packaging/node_package.py rpm build/node dist

clean:
	rm -rf .venv .clients build dist .coverage.d htmlcov .mps
	rm -rf .matrix 2>/dev/null || sudo rm -rf .matrix
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
