#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# matrix.sh [--reports FOLDER] [--quick] [RELEASE...]: runs unit and integration tests, and some of push and services, with other releases of ansible-core, each with a
# Python that it supports. The default is the oldest and the newest supported release. Tests marked thorough are left out, and integration tests
# marked one_release, which only use planners and Consul. With --quick, it only loads every plugin and runs one upgrade. All releases run in parallel.
# A release without a Python on this machine is skipped. With CONVOY_TEST_STRICT=1, that is a failure. Reports in JUnit format go to the folder.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf 'matrix: %s\n' "$*"; }

pythons_for() {
    case $1 in
        2.17) echo 3.10 3.11 3.12 ;;
        2.18 | 2.19) echo 3.11 3.12 3.13 ;;
        2.20 | 2.21) echo 3.13 3.12 3.14 ;;
        *) say "unknown release $1" >&2; exit 2 ;;
    esac
}

find_python() {
    local version candidate
    for version in "$@"; do
        for candidate in "python$version" "$HOME/.pyenv/versions/$version".*/bin/python; do
            if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
                echo "$candidate"
                return
            fi
        done
    done
    return 1
}

# try RELEASE NUMBER ARGUMENT...: runs pytest with a release, and reports it under a number.
try() {
    local release=$1 number=$2
    shift 2
    "$venv/bin/python" -m pytest -q -p no:cacheprovider ${reports:+--junitxml="$reports/$release-$number.xml"} "$@"
}

run() {
    local release=$1 python venv locked lacking
    # shellcheck disable=SC2046  the versions are words of their own
    if ! python=$(find_python $(pythons_for "$release")); then
        lacking="ansible-core $release needs Python $(pythons_for "$release" | sed 's/ /, /g; s/\(.*\), /\1 or /'), and none of them is here"
        say "$lacking"
        [ "${CONVOY_TEST_STRICT:-}" != 1 ] || return 1
        [ -z "$reports" ] || printf '<testsuite><testcase name="%s"><skipped message="%s"/></testcase></testsuite>\n' \
            "$release" "$lacking" >"$reports/$release.xml"
        return
    fi
    venv=.cache/matrix/$release
    locked=requirements/locked/matrix-$release.txt
    if ! { "$venv/bin/python" -c pass 2>/dev/null && cmp -s "$locked" "$venv/.requirements"; }; then
        rm -rf "$venv"
        "$python" -m venv "$venv"
        "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile --require-hashes --only-binary :all: -r "$locked"
        cp "$locked" "$venv/.requirements"
    fi
    tools/link-collection.sh "$venv/bin/python"
    say "ansible-core $release on $("$venv/bin/python" --version)"
    if [ "$quick" ]; then
        try "$release" 1 tests/integration/playbooks/test_every_plugin.py tests/push/test_upgrade.py \
            -k "every_plugin_is_imported or small_fleet_is_upgraded"
        return
    fi
    # One case of each behaviour shows whether a release differs. More cases of the same are tried with the release of the other checks.
    try "$release" 1 -m "not one_release and not thorough" tests/unit
    try "$release" 2 -m "not one_release and not thorough" tests/integration
    # Push tests that together use every playbook, both planes, a failure and a retry.
    try "$release" 3 tests/push/test_upgrade.py \
        -k "fleet_goes_through or services_get_where or failed_host_is_tried or small_fleet_is_upgraded"
    # Those that other services use. Releases differ in conditions and templates.
    try "$release" 4 tests/services/test_package_service.py tests/services/test_repositories.py tests/services/test_consul_service.py
}

quick='' reports=''
if [ "${1:-}" = --reports ]; then reports=$2; shift 2; fi
if [ "${1:-}" = --quick ]; then quick=1; shift; fi
[ $# -gt 0 ] || set -- 2.17 2.21
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# In parallel, because the tests mostly wait for Consul and Ansible. The output of each is shown at its end.
declare -A running
for release in "$@"; do
    run "$release" >"$logs/$release" 2>&1 &
    running[$release]=$!
done
code=0
for release in "$@"; do
    wait "${running[$release]}" || code=1
    cat "$logs/$release"
done
exit "$code"
