# Every target makes what it needs first: a virtual environment in .venv and the package with the
# extra that the target uses, in the versions of a lock: locks/dev.txt, one environment's, is named
# after its extra in pyproject.toml. Stamp files inside .venv remember what is installed, so that only
# the first call, or a change of pyproject.toml or the lock, installs anything.
#
#   make demo                       train on real text on two ranks, fixed batches against evenstep
#   make test                       everything but the soak runs
#   make learning DATA=FILE.parquet:COLUMN   held-out loss of every policy on your own text
#   make docs                       the documentation as a site, in site/
#   make docs-version DOCS_VERSION=0.1   the same in the branch gh-pages, beside other releases
#   make papers                     the papers' tables and figures again, in docs/papers.md; FAST=1 leaves
#                                   out what takes minutes; ONLY=odb/table-17 runs one
#   make integrations               trainers of other projects, in .venv-integrations
#   make integrations-4             Trainer of transformers 4, in .venv-integrations-4
#   make gpu                        what needs a GPU, in ten minutes, and docs/gpu.md; without one it
#                                   says so
#   make locks                      all locks again, with today's releases, then every suite with them
#   make dist                       the wheel and the source package, checked, in dist/, by uv
#   make smoke                      the wheel in fresh environments, by uv: each of PYTHONS=, with the
#                                   oldest and the newest torch and NumPy
#   make slow                       kills, stops and networks at length; a quarter of an hour
#   make soak                       all that takes long, for hours: killed and resumed jobs, chaos,
#                                   fuzzing, simulation; EVENSTEP_SOAK_SECONDS=160 shortens some
#   make demo PYTHON=python3.12     another interpreter, 3.10 or later
#   make test PIP="uv pip"          by uv, which is faster and reads UV_* instead of pip's settings
#   make test PYTEST_ARGS="-k cost" a part of the suite; JOBS=8 runs it in so many processes
#   make matrix PYTHON=python3.13   plans and the loader with the newest torch and NumPy, by uv, in
#                                   .venv-matrix; RESOLUTION=lowest-direct takes the oldest of all

PYTHON ?= python3
VENV ?= .venv
# Which file of locks/ has its versions.
LOCK ?= dev
PYTEST_ARGS ?=
DATA ?=
# One more than the cores of a small machine: tests wait for processes that start, die and are noticed.
JOBS ?= 3
FAST ?=
ONLY ?=
UV ?= uv
MATRIX ?= .venv-matrix
RESOLUTION ?= highest
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
MATRIX_TESTS ?= tests/plan tests/protocol tests/strategy tests/batch tests/loader tests/scenarios
# In the order of folders: files of a single test are the longest, and would otherwise come last.
BY_FILE := --dist loadfile --no-loadscope-reorder

BIN := $(VENV)/bin
PIP ?= $(BIN)/python -m pip
# Where pip is told to look for wheels, uv looks too.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# A file that calls `main` when it is run is a benchmark; the others are shared by benchmarks.
BENCHMARKS := $(sort $(filter-out %/__main__.py,$(shell grep -rl --include='*.py' '^if __name__ == "__main__"' benchmarks)))

.PHONY: help install demo learning test integrations integrations-4 matrix gpu locks dist smoke slow soak lint docs docs-version papers bench clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile
	@echo "targets: install demo learning test integrations integrations-4 matrix gpu locks dist smoke slow soak lint docs docs-version papers bench clean"

# What several targets need that run at the same time, as they do in .ci/run.
install: $(VENV)/.installed-lint $(VENV)/.installed-docs $(VENV)/.installed-test

demo: $(VENV)/.installed-demo
	$(BIN)/evenstep demo

# Several files with a space between them; finished runs are kept in out/learning.
learning: $(VENV)/.installed-demo
	$(BIN)/python -m benchmarks.learning.heldout_loss $(addprefix --data ,$(DATA))

# Hundreds of processes import the package. Where Python is told to write no bytecode, each would
# compile it again.
test: $(VENV)/.installed-test
	@$(BIN)/python -m compileall -q src
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow and not soak and not integrations" -n $(JOBS) $(BY_FILE) $(PYTEST_ARGS)

# Their packages pin one another, so each has an environment of its own.
integrations integrations-4:
	@$(MAKE) --no-print-directory VENV=.venv-$@ LOCK=$@ .venv-$@/.installed-$@
	PATH="$(CURDIR)/.venv-$@/bin:$$PATH" OMP_NUM_THREADS=1 .venv-$@/bin/python -m pytest $(if $(filter %-4,$@),tests/integrations/transformers,tests/integrations) $(PYTEST_ARGS)

# Not the whole of the extra `test`: Ray, say, comes late to new interpreters.
matrix:
	$(UV) venv -q --clear --python $(PYTHON) $(MATRIX)
	$(UV) pip install -q --compile-bytecode --python $(MATRIX)/bin/python --resolution $(RESOLUTION) -e '.[cli,sources,test-tools]'
	$(UV) pip freeze -q --python $(MATRIX)/bin/python | grep -iE '^(torch|numpy|scipy|pyarrow)=='
	$(MATRIX)/bin/python -m benchmarks.planning.plan_digests | sha256sum
	OMP_NUM_THREADS=1 $(MATRIX)/bin/python -m pytest -m "not slow and not soak and not integrations" -n $(JOBS) $(BY_FILE) $(MATRIX_TESTS) $(PYTEST_ARGS)

gpu: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gpu --page docs/gpu.md

# Resolved with the CUDA build of torch, so that versions suit both builds; then without the lines
# that only this build needs: it names their versions itself.
locks:
	@mkdir -p locks
	@set -e; for lock in dev:3.10 integrations:3.11 integrations-4:3.10; do \
		extra=$${lock%:*}; file=locks/$$extra.txt; echo "locking $$file"; \
		$(UV) pip compile -q --universal --python-version $${lock#*:} --annotation-style line --no-header \
			-c constraints.txt --extra $$extra pyproject.toml > $$file.new; \
		sed -E '/^(nvidia|cuda)-/d; /^triton.* via torch$$/d; 1i # Made by `make locks`.' $$file.new > $$file; \
		rm $$file.new; \
	done
	$(MAKE) lint docs test integrations integrations-4

# The wheel is made from the source package.
dist:
	rm -rf dist
	$(UV) build -q
	$(UV) tool run -q twine check --strict dist/*.whl dist/*.tar.gz
	$(UV) tool run -q check-wheel-contents dist/*.whl

smoke: dist
	@set -e; for python in $(PYTHONS); do for resolution in lowest-direct highest; do \
		.ci/smoke dist/*.whl $$python $$resolution "$(UV)"; \
	done; done

slow: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not soak" -n $(JOBS) $(BY_FILE) $(PYTEST_ARGS)

soak: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak -s $(PYTEST_ARGS)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A broken link, a page that is in no menu or a missing name of the reference is an error.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "docs: open site/index.html"

# Adds a release's documentation to the branch gh-pages, beside that of others.
docs-version: $(VENV)/.installed-docs
	@test -n "$(DOCS_VERSION)" || { echo 'name the version: make docs-version DOCS_VERSION=0.1'; exit 1; }
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mike deploy $(PUSH) --update-aliases $(DOCS_VERSION) $(DOCS_ALIAS)
	$(BIN)/mike set-default $(PUSH) --allow-undefined latest

papers: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.papers.book --run $(ONLY) $(if $(FAST),--fast)

bench: $(VENV)/.installed-bench
	@set -e; for module in $(subst /,.,$(BENCHMARKS:.py=)); do \
		echo "== $$module"; $(BIN)/python -m $$module; \
	done

clean:
	rm -rf $(VENV) $(MATRIX) .venv-integrations .venv-integrations-4 build dist out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("evenstep needs Python 3.10 or later, and $(PYTHON) is %d.%d; name another one: make PYTHON=python3.12" % v[:2])'
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# What mypy says depends on which optional packages it finds, so lint installs all of the suite's.
$(VENV)/.installed-lint: EXTRAS = test,lint
$(VENV)/.installed-demo: EXTRAS = demo
$(VENV)/.installed-docs: EXTRAS = docs
$(VENV)/.installed-test: EXTRAS = test
$(VENV)/.installed-bench: EXTRAS = bench
$(VENV)/.installed-integrations: EXTRAS = integrations
$(VENV)/.installed-integrations-4: EXTRAS = integrations-4

$(VENV)/.installed-%: $(VENV)/.made pyproject.toml locks/$(LOCK).txt
	@echo "installing evenstep[$(EXTRAS)] into $(VENV): the first time takes minutes, for torch"
	@VIRTUAL_ENV=$(VENV) $(PIP) install -q --no-compile --disable-pip-version-check -c locks/$(LOCK).txt -e '.[$(EXTRAS)]'
	@# By all cores, which pip does not. Some packages have files for later Pythons only.
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@
