#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# test.sh [CHECK...]: everything that checks the project, or the checks that are named. The quick ones come first.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" NO_COLOR=1 ANSIBLE_NOCOLOR=1

types() {
    # mypy wants the packages where Python would find them.
    local tree=.cache/types
    mkdir -p "$tree/ansible_collections/convoy"
    ln -sfn "$PWD" "$tree/ansible_collections/convoy/upgrade"
    # Joined, as bash passes over a failure in a function that is called to the left of ||.
    (cd "$tree" && MYPYPATH=. mypy --config-file ../../pyproject.toml -p ansible_collections.convoy.upgrade.plugins) &&
        MYPYPATH=tools mypy tools/devkit tools/messages && MYPYPATH=tools:tests mypy tests/lab tests/pages
}
style() { ruff check . && ruff format --check .; }
changelog() { antsibull-changelog lint; }
lint() { ansible-lint; }
docs() { antsibull-docs lint-collection-docs --plugin-docs --validate-collection-refs=self .; }
site() { tools/site/build.sh; }
unit() { python -m pytest -q tests/unit; }
# Side by side, and after that the look back on what all of them have used and seen.
integration() {
    local seen
    seen=$(mktemp -d)
    python -m pytest -q -n 3 --dist loadfile tests/integration --ignore tests/integration/test_reference.py --seen "$seen" &&
        python -m pytest -q tests/integration/test_reference.py --seen "$seen" || { rm -rf "$seen"; return 1; }
    rm -rf "$seen"
}
# On the lab: these need root, and are passed over without it; under CI=true that is a failure.
push() { python -m pytest -q -n 3 tests/push; }
services() { python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder tests/services; }
# Ten runs; the nightly ones are: python tests/fire --runs 200
fire() { python -m pytest -q -n 2 tests/fire; }
# The longest file goes first.
nodes() { python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder tests/nodes/test_n*.py tests/nodes/test_[!n]*.py; }
molecule() {
    local log
    if [ "$(id -u)" != 0 ]; then
        echo "molecule: the lab needs root, so its scenario is not run"
        [ "${CI:-}" != true ]
        return
    fi
    log=$(mktemp)
    command molecule test >"$log" 2>&1 || { cat "$log"; rm "$log"; return 1; }
    rm "$log"
    echo "molecule: the scenario passed, its idempotence check included"
}
artifact() { tools/checks/artifact.sh; }
sanity() { tools/checks/sanity.sh; }
demo() { python tools/demo; }
benchmarks() { python tests/benchmarks --hosts 100 1000 10000 && python tests/benchmarks/window.py --hosts 6; }
matrix() { tools/checks/matrix.sh; }

checks=("$@")
[ ${#checks[@]} -gt 0 ] || checks=(style types changelog docs site lint unit artifact integration push fire services nodes molecule demo benchmarks sanity matrix)

tools/setup.sh test
for check in "${checks[@]}"; do
    printf '\n== %s\n' "$check"
    began=$SECONDS
    "$check" || { printf '== %s failed after %s s; again with: make setup && tools/test.sh %s\n' "$check" $((SECONDS - began)) "$check"; exit 1; }
    printf '== %s: %s s\n' "$check" $((SECONDS - began))
done
printf '\nAll %s checks passed in %s s.\n' "${#checks[@]}" "$SECONDS"
