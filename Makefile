# `make up` and `make test` do all the set-up themselves; nothing has to be activated by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := router engine loadtest proto/pointsman tests

.PHONY: up install test test-all retest lint interop stubs clean

up: $(STAMP)
	@exec $(BIN)/pointsman up

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pointsman needs Python 3.11 or newer, not %d.%d." % sys.version_info[:2])'
	@echo "Installing Pointsman into $(VENV) (pinned by constraints.txt; PyTorch is the large one)."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[engine,redis-server,load,dev]'
	@touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -m "not slow"

test-all: lint
	$(BIN)/python -m pytest

# What failed in the last run, once more. Fails if nothing did: then the run broke in another way.
retest: $(STAMP)
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

# Two real vLLMs behind the router: `make interop VLLM=PROGRAM MODEL=FOLDER [ADAPTER=FOLDER]`; the README says how to
# have them.
interop: $(STAMP)
	$(BIN)/python -m loadtest.interop --vllm "$(VLLM)" --model "$(MODEL)" $(if $(ADAPTER),--adapter "$(ADAPTER)")

stubs: $(STAMP)
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --grpc_python_out=proto --pyi_out=proto proto/pointsman/v1/*.proto

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
