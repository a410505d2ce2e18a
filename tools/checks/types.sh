#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs mypy on a folder layout in which it finds the collection's packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

tree=.cache/types
mkdir -p "$tree/ansible_collections/convoy"
ln -sfn "$PWD" "$tree/ansible_collections/convoy/upgrade"
(cd "$tree" && MYPYPATH=. mypy --config-file ../../pyproject.toml -p ansible_collections.convoy.upgrade.plugins)
MYPYPATH=agent mypy agent/convoy_node agent/__main__.py
MYPYPATH=tools mypy tools/devkit
MYPYPATH=tools:tests mypy tests/lab tests/pages tools/checks
