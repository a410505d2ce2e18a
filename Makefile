# Start with `make demo` and `make test`. CONTRIBUTING.md describes the other targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | column -t -s $$'\t'

.PHONY: setup
setup: ## Create .venv, which runs convoy.upgrade from this checkout, and get Consul
	@tools/setup.sh

.PHONY: demo
demo: ## Upgrade a small demonstration fleet, and show it
	@tools/setup.sh demo
	@.venv/bin/python tools/demo

.PHONY: test
test: ## Check the whole product in a quarter of an hour
	@tools/test.sh --quick

.PHONY: test-all
test-all: ## Run all checks
	@tools/test.sh

N ?= 1000
.PHONY: nights
nights: ## Simulate N=1000 nights with fresh seeds on all cores, and some of jobs
	@tools/setup.sh test
	@.venv/bin/python tests/simulation --nights $(N)

.PHONY: bench
bench: setup ## Measure everything beside its peers, with fleets of up to 100,000 hosts, and what waiting nodes cost
	@.venv/bin/python tests/benchmarks

.PHONY: lock
lock: ## Write the locked versions that pip installs, from requirements
	@tools/lock.sh

.PHONY: picture
picture: setup ## Take the picture in README.md again
	@tools/setup.sh test
	@.venv/bin/python tools/picture

.PHONY: docs
docs: setup ## Build a site of the pages and the reference of plugins and roles
	@tools/site/build.sh

.PHONY: build
build: setup ## Build the artifact that ansible-galaxy installs
	@.venv/bin/ansible-galaxy collection build --force --output-path .cache/build

.PHONY: deb
deb: setup ## Build the Debian package of the node agent
	@tools/deb/build.sh $(VERSION)

.PHONY: clean
clean: ## Remove the output of the other targets
	@rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
