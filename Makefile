# Everything runs from the tree, in .venv; all it takes is Python >= 3.11 with its venv module.
# `make` lists what there is to do.

PYTHON ?= python3
UV ?= uv
REQUIREMENTS ?= requirements.txt
STORM_ARGS ?=
BENCH_ARGS ?=
TEST_ARGS ?= --numprocesses auto --dist worksteal
# Fast tests hardly wait, so one worker for each core; collecting the folders of slow tests takes seconds in each.
FAST_ARGS ?= --numprocesses logical --dist worksteal -p no:schemathesis \
	--ignore tests/e2e --ignore tests/gateway/cli --ignore tests/plugins/cli_backends

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes
# One stamp for each file of requirements, so that another one is installed although the first is up to date.
INSTALLED := $(VENV)/.installed-$(notdir $(REQUIREMENTS))
INSTALLED_DEV := $(VENV)/.installed-dev
CODE := gateway channels plugins
# Containers often keep Python from writing bytecode; then every process that a test starts compiles all it imports.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
LOCK := $(UV) pip compile --quiet --universal --no-strip-extras --generate-hashes --no-emit-index-url --python-version 3.11 \
	--custom-compile-command "make lock"

.PHONY: help run install test test-fast test-storm check format storm bench audit lock wheels schema model-data container clean

help:  ## list these
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: $(INSTALLED)  ## install what is missing, and start the gateway
	@$(BIN)/python -m gateway run $(RUN_ARGS)

install: $(INSTALLED)  ## make .venv with the pinned dependencies and the command `trunkline`

test: $(INSTALLED_DEV)  ## run the tests
	$(PYTEST) $(TEST_ARGS)

test-fast: $(INSTALLED_DEV)  ## run the tests that need no process, browser or server, within a minute
	$(PYTEST) $(FAST_ARGS) -m "not slow and not browser and not node and not postgres"

test-storm: $(INSTALLED_DEV)  ## plant each of 24 bugs in the gateway, and see the storm find it
	$(PYTEST) tests/e2e/test_storm.py -m "planted or not planted" $(TEST_ARGS)

check: $(INSTALLED_DEV)  ## format, lint, types, arrows between packages, settings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -W error -m gateway config check --config config/trunkline.toml
	$(BIN)/python -W error -m gateway config check --config config/example.toml

format: $(INSTALLED_DEV)  ## format the code, and put right what can be
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

storm: $(INSTALLED_DEV)  ## kill real processes at random, and count what was lost or doubled
	$(BIN)/python tests/storm/run.py $(STORM_ARGS)

bench: $(INSTALLED_DEV)  ## measure against a floor in the same run
	$(BIN)/python tests/bench/run.py $(BENCH_ARGS)

audit:  ## compare the pinned dependencies with the database of known vulnerabilities
	.ci/audit

lock:  ## pin the dependencies anew (needs uv)
	$(LOCK) pyproject.toml -o requirements.txt
	$(LOCK) pyproject.toml --extra postgres -c requirements.txt -o requirements-postgres.txt
	$(LOCK) pyproject.toml --extra bedrock -c requirements.txt -o requirements-bedrock.txt
	$(LOCK) pyproject.toml --extra cluster -c requirements.txt -o requirements-cluster.txt
	$(LOCK) pyproject.toml --extra discovery -c requirements.txt -o requirements-discovery.txt
	$(LOCK) pyproject.toml --extra documents -c requirements.txt -o requirements-documents.txt
	$(LOCK) pyproject.toml --extra files -c requirements.txt -o requirements-files.txt
	$(LOCK) pyproject.toml --extra interactions -c requirements.txt -o requirements-interactions.txt
	$(LOCK) pyproject.toml --extra keyring -c requirements.txt -o requirements-keyring.txt
	$(LOCK) pyproject.toml --extra mcp -c requirements.txt -o requirements-mcp.txt
	$(LOCK) pyproject.toml --extra vertex -c requirements.txt -o requirements-vertex.txt
	$(LOCK) pyproject.toml --extra web -c requirements.txt -o requirements-web.txt
	$(LOCK) pyproject.toml --group testing -c requirements.txt -o requirements-testing.txt
	$(LOCK) pyproject.toml --extra postgres --group dev -c requirements.txt -o requirements-dev.txt

wheels: $(INSTALLED_DEV)  ## build the wheels of trunkline, trunkline-plugin and trunkline-testing into dist/
	$(BIN)/python -m hatchling build --target wheel --directory $(CURDIR)/dist
	cd packaging/plugin && $(CURDIR)/$(BIN)/python -m hatchling build --target wheel --directory $(CURDIR)/dist
	cd packaging/testing && $(CURDIR)/$(BIN)/python -m hatchling build --target wheel --directory $(CURDIR)/dist

schema: $(INSTALLED)  ## write config/schema.json anew
	$(BIN)/python -m gateway config schema > $(VENV)/schema.json
	mv $(VENV)/schema.json config/schema.json

model-data: $(INSTALLED_DEV)  ## write gateway/models/model_data.json anew, from the pinned genai-prices
	$(BIN)/python tests/tools/model_data.py > $(VENV)/model_data.json
	mv $(VENV)/model_data.json gateway/models/model_data.json

container:  ## build the container image
	docker build --file Containerfile --tag trunkline .

clean:  ## remove .venv and the caches; data stays
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Trunkline needs Python 3.11 or newer: make PYTHON=python3.12")'
	@echo "making $(VENV) …"
	@$(PYTHON) -m venv $(VENV) || { rm -rf .venv; echo "Python's venv module is missing: apt install python3-venv"; exit 1; }

# The tree itself is put on the path, so no build tool is needed; pip compiles what it installs.
$(INSTALLED): $(REQUIREMENTS) Makefile | $(VENV)/bin/python
	@echo "installing the dependencies …"
	@$(PIP) --requirement $(REQUIREMENTS)
	@$(BIN)/python -c 'import os, sysconfig; open(sysconfig.get_path("purelib") + "/trunkline.pth", "w").write(os.getcwd() + "\n")'
	@printf '#!%s\nimport sys\n\ntry:\n    from gateway.__main__ import main\nexcept KeyboardInterrupt:\n    sys.exit(130)\n\nsys.exit(main())\n' "$(CURDIR)/$(BIN)/python" > $(BIN)/trunkline
	@chmod +x $(BIN)/trunkline
	@$(BIN)/python -m compileall -q $(CODE)
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	@echo "installing what tests and checks need …"
	@$(PIP) --requirement requirements-dev.txt
	@touch $@
