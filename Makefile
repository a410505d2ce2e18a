# The two commands of a newcomer are `make demo` and `make test`; CONTRIBUTING.md tells of the others.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

.PHONY: setup
setup: ## Make .venv able to run convoy.upgrade from this checkout, and get Consul
	@tools/setup.sh

.PHONY: demo
demo: setup ## Upgrade a small demonstration fleet and watch it
	@.venv/bin/python tools/demo

.PHONY: test
test: ## Check the whole product in a quarter of an hour
	@tools/test.sh --quick

.PHONY: test-all
test-all: ## Run everything that checks the project
	@tools/test.sh

.PHONY: bench
bench: setup ## Measure passes over fleets of up to 100,000 hosts
	@.venv/bin/python tests/benchmarks

.PHONY: lock
lock: ## Write requirements/locked from requirements, which pip installs from
	@tools/lock.sh

.PHONY: picture
picture: setup ## Take the picture of the first page anew
	@tools/setup.sh test
	@.venv/bin/python tools/picture

.PHONY: docs
docs: setup ## Make a site of the pages and of the reference of plugins and roles
	@tools/site/build.sh

.PHONY: build
build: setup ## Build the artifact that ansible-galaxy installs
	@.venv/bin/ansible-galaxy collection build --force --output-path .cache/build

.PHONY: clean
clean: ## Remove what the other targets made
	@rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
