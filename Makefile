# Everything starts here, on a machine with python3 (>= 3.11) and make only.
#   make serve   install, then serve the bundled model
#   make test    install, then run the tests
#   make check   format, lint, types, architecture
#   make train   train the bundled model anew
#   make first-answer  time a fresh clone's way to its first streamed answer
#   make site    build the documentation as a site into build/site
# Variables: PYTHON=python3.12  ARGS="--port 9000"
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
export OMP_NUM_THREADS ?= 1

.PHONY: serve chat test nightly check format train docs site first-answer clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^#   //p' Makefile

serve: $(VENV)/.installed
	$(BIN)/benthic serve $(ARGS)

chat: $(VENV)/.installed
	$(BIN)/benthic chat $(ARGS)

train: $(VENV)/.installed
	$(BIN)/benthic train recipes/tiny.toml $(ARGS)

# Two processes, each with whole files: tests of one file share their servers and models.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

nightly: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m nightly $(ARGS)

check: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_docs.py

format: $(VENV)/.installed-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-test
	$(BIN)/python scripts/write_docs.py

first-answer:
	$(or $(PYTHON),python3) scripts/first_answer.py

site: $(VENV)/.installed-test
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

clean:
	rm -rf $(VENV) build dist

# A stamp is newer than what it was made from, so a second call costs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt scripts/install.sh
	bash scripts/install.sh $(VENV) ""
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt scripts/install.sh
	bash scripts/install.sh $(VENV) "[test]"
	@touch $(VENV)/.installed $@
