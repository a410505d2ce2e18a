#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Creates .venv with Ansible and the Consul client, links this checkout into it as the collection convoy.upgrade, and gets Consul.
# With the argument "test", it also installs the requirements of the checks, with "docs" those of the site, with "demo" those of the live view.
# pip installs only the versions in requirements/locked, which tools/lock.sh writes.
# A repeated call is fast: pip runs only if the locked versions or the Python changed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

install_packages() {
    [ "$(id -u)" = 0 ] || die "needs the packages $*: ask an administrator for 'apt-get install $*', then try again."
    command -v apt-get >/dev/null || die "needs Python 3.11 or later with its venv module: install $* and try again."
    say "installing $*"
    apt-get -q update >/dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get -q -y install "$@" >/dev/null
}

find_python() {
    local name
    # Distributions build an optimized Python, which runs modules in two thirds of the processor time that one built by pyenv takes.
    if [ -z "${PYTHON:-}" ] && fits /usr/bin/python3 && /usr/bin/python3 -c 'import ensurepip' 2>/dev/null; then echo /usr/bin/python3; return; fi
    for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if command -v "$name" >/dev/null && fits "$name"; then command -v "$name"; return; fi
    done
    return 1
}

make_venv() {
    local python
    python=$(find_python) || { install_packages python3 python3-venv; python=$(find_python); } ||
        { install_packages python3.12 python3.12-venv || install_packages python3.11 python3.11-venv; python=$(find_python); } ||
        die "needs Python 3.11 or later; set PYTHON to one, and try again."
    say "making .venv with $("$python" --version)"
    rm -rf .venv
    if ! "$python" -m venv .venv >/dev/null 2>&1; then
        install_packages "python3-venv" "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        "$python" -m venv .venv
    fi
}

install_requirements() {
    local locked=requirements/locked/$1.txt stamp=.venv/.$1-requirements compile=--compile
    # Python compiles what checks use of their packages.
    [ "$1" != test ] || compile=--no-compile
    if ! cmp -s "$locked" "$stamp"; then
        say "installing the $1 requirements"
        # Packages are not built from source, because build dependencies are not locked.
        .venv/bin/python -m pip install -qq --disable-pip-version-check $compile --require-hashes --only-binary :all: -r "$locked"
        cp "$locked" "$stamp"
    fi
}

if ! { [ -x .venv/bin/python ] && fits .venv/bin/python; }; then make_venv; fi
install_requirements runtime
# The demonstration shows the live view.
if [ "${1:-}" = demo ]; then install_requirements live; fi
if [ "${1:-}" = docs ]; then install_requirements docs; fi
if [ "${1:-}" = test ]; then
    install_requirements test
    # promtool checks the metrics. Without it, their test is skipped, and fails in the CI.
    tools/monitoring.sh promtool >/dev/null || true
    # Chromium opens the reports. Without it, their test is skipped, and fails in the CI.
    tools/browser.sh >/dev/null || true
    # axe-core checks that pages are accessible, also skipped without it.
    tools/axe.sh >/dev/null || true
    # Commands for the lab of the tests. The lab needs root, so they are installed only for root.
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        command -v ip >/dev/null || install_packages iproute2
        command -v ssh >/dev/null || install_packages openssh-client
    fi
fi

tools/link-collection.sh .venv/bin/python
consul=$(tools/consul.sh)
say "ready: .venv/bin/ansible-playbook ($(.venv/bin/python -c 'import ansible.release as r; print("ansible-core", r.__version__)')), $("$consul" version | head -n 1) at $consul"
