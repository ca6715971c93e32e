# Everything runs from a fresh checkout; .ci/setup makes what is missing.

.PHONY: help demo test coverage test-matrix check bench clean node-tree node-deb node-rpm
.NOTPARALLEL:

# A Python that measures coverage or an active virtual environment must not leak in.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PATH := $(CURDIR)/.venv/bin:$(PATH)

SHELL_SCRIPTS = $(wildcard .ci/setup .ci/run hooks/*.sh tests/demo/*.sh tests/gpu/*.sh tests/matrix/*.sh packaging/*.sh)

help:
	@echo 'make demo    pack small trainings on this machine, with a private Slurm where one can be installed'
	@echo 'make test    set-up, static checks and all tests'
	@echo 'make coverage  all tests, with line coverage'
	@echo 'make test-matrix  the tests that say something about a release, on other Slurms and Pythons'
	@echo 'make check   static checks only: ruff, mypy, import-linter, shellcheck'
	@echo 'make bench   measure csub and its runner on a private Slurm; MARKDOWN=FILE keeps the tables'
	@echo 'make node-tree, node-deb, node-rpm  what nodes need for the hooks, in dist/ (docs/admin.md)'
	@echo 'make clean   remove what these targets made, .venv included'

demo:
	@sh .ci/setup demo
	@sh tests/demo/demo.sh

# Most tests wait for Slurm, so several run at a time. A file stays together, for its tests share
# what it set up, and files come as tests/conftest.py orders them.
WORKERS ?= 4

# pytest comes last, so that its closing line is the last line.
test:
	@sh .ci/setup test
	@$(MAKE) --no-print-directory run-checks
	@python -m tests.again "--beside=-n $(WORKERS) --dist loadfile --no-loadscope-reorder"

# Measuring nearly doubles the time that each program takes to start.
coverage:
	@sh .ci/setup test
	@rm -rf .coverage.d && mkdir -m 777 .coverage.d
	@python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term

# Everything that can run there, with ALL=1. One release, and words for pytest:
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
	rm -rf .venv build dist .coverage.d htmlcov .mps
	rm -rf .matrix 2>/dev/null || sudo rm -rf .matrix
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
