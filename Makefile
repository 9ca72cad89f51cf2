# `make` lists the targets. Everything is installed into .venv; nothing else on this machine is touched, except that
# `make run` and `make test` as root on Debian install the system packages that are missing.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run test check bench prove prove-scheduler clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: .venv/installed ## Start Bellringer and replay a night of task events into its console
	@exec .venv/bin/bellringer up --demo

test: .venv/installed-dev ## Run every test, those with crashes, several processes and a browser included
	@scripts/install-programs chromium postgresql-15 libfaketime
	.venv/bin/pytest

check: .venv/installed-dev ## Check style, types and who may import whom
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

bench: .venv/installed-bench ## Measure, each benchmark against its peer
	@scripts/install-programs wrk
	.venv/bin/python -m bench

prove: .venv/installed-dev ## Send a million messages while brokers, consumers and PostgreSQL are killed, and judge the record
	.venv/bin/python -m tests.support.under_fire

prove-scheduler: .venv/installed-dev ## Run tasks while pickers, executors and PostgreSQL are killed, their clocks apart; judge it
	@scripts/install-programs libfaketime
	.venv/bin/python -m tests.support.scheduler_under_fire

clean: ## Remove .venv and what tools left behind; the data in .bellringer stays
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml scripts/install
	@scripts/install
	@touch $@

.venv/installed-dev: pyproject.toml scripts/install
	@scripts/install dev
	@touch .venv/installed $@

.venv/installed-bench: pyproject.toml scripts/install
	@scripts/install bench
	@touch .venv/installed $@
