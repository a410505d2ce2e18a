#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# link-collection.sh PYTHON: links this checkout into the environment of a Python as the collection convoy.upgrade.
# Ansible finds collections on Python's path, so with the link, edits take effect at once.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
packages=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$packages/ansible_collections/convoy"
ln -sfn "$root" "$packages/ansible_collections/convoy/upgrade"
