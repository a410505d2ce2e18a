#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Creates .venv with Ansible and the Consul client, links this checkout into it as the collection convoy.upgrade, and gets Consul.
# With the argument "test", it also installs the requirements of the checks, with "docs" those of the site, with "demo" those of the live view.
# pip installs only the versions in requirements/locked, which tools/lock.sh writes.
# A repeated call is fast: pip runs only if the locked versions or the Python changed. PYTHON=python3.12 chooses the Python of a new .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
# Debian has in a package of its own what venv installs pip with.
has_venv() { fits "$1" && "$1" -c 'import ensurepip' 2>/dev/null; }
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install_packages() {
    say "installing $*"
    apt-get -q update >/dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get -q -y install "$@" >/dev/null
}

no_python() {
    die "needs Python 3.11 or later with its venv module: install it (on Debian and Ubuntu, python3.13-venv, python3.12-venv or" \
        "python3.11-venv), or set PYTHON to one, and try again."
}

find_python() {
    local check name system
    for check in has_venv fits; do
        for name in python3 python3.13 python3.12 python3.11 python3.14; do
            "$check" "$name" || continue
            # Distributions build an optimized Python. With one of pyenv, modules take half as much processor time again.
            system=/usr/bin/python$(version "$name")
            if has_venv "$system"; then echo "$system"; else command -v "$name"; fi
            return
        done
    done
    return 1
}

make_venv() {
    local python package
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || die "PYTHON is $PYTHON, and no Python 3.11 or later: set it to one, or unset it, and try again."
        python=$PYTHON
    elif ! python=$(find_python); then
        can_install || no_python
        # Which of them there are depends on the release of the distribution.
        for package in python3-venv python3.12-venv python3.11-venv; do
            if install_packages "$package" && python=$(find_python); then break; fi
        done
        [ -n "$python" ] || no_python
    fi
    if ! has_venv "$python"; then
        can_install || no_python
        install_packages python3-venv "python$(version "$python")-venv"
    fi
    say "making .venv with $("$python" --version) ($python)"
    rm -rf .venv
    "$python" -m venv .venv || die "$python could not make .venv, as it says above: set PYTHON to another one, and try again."
    describe_venv >.venv/.made
}

# Scripts in .venv have its path in them, and its packages are for one version of Python.
describe_venv() { echo "$(pwd -P)" "$(version .venv/bin/python)"; }

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

# One that was made in part, or elsewhere, or for a Python that is gone, is made again.
if ! describe_venv 2>/dev/null | cmp -s - .venv/.made; then make_venv; fi
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
    if can_install; then
        command -v ip >/dev/null || install_packages iproute2
        command -v ssh >/dev/null || install_packages openssh-client
    fi
fi

tools/link-collection.sh .venv/bin/python
consul=$(tools/consul.sh)
say "ready: .venv/bin/ansible-playbook ($(.venv/bin/python -c 'import ansible.release as r; print("ansible-core", r.__version__)')), $("$consul" version | head -n 1) at $consul"
