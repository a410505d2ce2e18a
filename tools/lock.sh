#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# lock.sh [OPTION...]: writes requirements/locked from the files in requirements. The locked files have the version of each package that pip
# installs, and the hashes of its files. Locked versions stay if they still fit. --upgrade takes the newest versions, --upgrade-package NAME
# the newest version of one package. These are options of uv.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=.cache/lock
[ -x "$tools/bin/uv" ] || { python3 -m venv "$tools" && "$tools/bin/pip" install -qq --disable-pip-version-check uv; }
# The package index of pip. It is not written to the files.
index=$("$tools/bin/pip" config get global.index-url 2>/dev/null || true)
index=${PIP_INDEX_URL:-$index}

# lock NAME PYTHON REQUIREMENTS...: writes NAME.txt for this Python and later ones.
lock() {
    local name=$1 python=$2
    shift 2
    printf 'lock: %s\n' "$name"
    ${index:+env "UV_DEFAULT_INDEX=$index"} "$tools/bin/uv" pip compile --quiet --universal --python-version "$python" --generate-hashes \
        --no-annotate --custom-compile-command 'make lock' "${options[@]}" "$@" -o "requirements/locked/$name.txt"
}

options=("$@")
mkdir -p requirements/locked
lock runtime 3.10 requirements/runtime.txt
# All of these are installed into one environment, so each file uses the versions of the one before.
# With the live view, for the demonstration.
lock live 3.10 requirements/runtime.txt requirements/live.txt -c requirements/locked/runtime.txt -c requirements/test.txt
# With messages, for planner services.
lock planner 3.10 requirements/runtime.txt requirements/planner.txt -c requirements/locked/runtime.txt -c requirements/test.txt
lock test 3.11 requirements/runtime.txt requirements/test.txt -c requirements/locked/runtime.txt -c requirements/docs.txt
# An environment of its own.
lock rulebook 3.11 requirements/runtime.txt requirements/rulebook.txt -c requirements/locked/runtime.txt
lock docs 3.11 requirements/runtime.txt requirements/docs.txt -c requirements/locked/test.txt

# Requirements of tools/checks/matrix.sh, for each release of ansible-core with the lowest Python that it supports.
tests=$(mktemp)
trap 'rm -f "$tests"' EXIT
for pair in 2.17:3.10 2.18:3.11 2.19:3.11 2.20:3.12 2.21:3.12; do
    release=${pair%:*}
    { printf 'ansible-core==%s.*\n' "$release"; grep -E '^(apprise|pytest|hypothesis|jsonschema|pillow|prometheus_client|pyte|rich)' requirements/test.txt; } >"$tests"
    lock "matrix-$release" "${pair#*:}" requirements/runtime.txt "$tests"
done
