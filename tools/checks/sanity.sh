#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# sanity.sh [--quick]: runs ansible-test sanity on a copy of the tracked files, in the folder layout that it requires. With --quick, it leaves out
# the files that are only for developers and not in the artifact, and the two longest tests: pylint, and import. The check matrix imports every
# plugin, also in `make test`.
#
# ansible-test downloads a script that installs pip, which fails in closed networks. If the script is not in its cache, this one writes a
# replacement that uses Python's ensurepip and the package index of this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
files=(.)
# pslint needs PowerShell, and the collection has no PowerShell code.
left_out=(--skip-test pslint)
if [ "${1:-}" = --quick ]; then
    files+=(':!tools' ':!tests')
    left_out+=(--skip-test pylint --skip-test import)
fi
python=$("$root/.venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/ansible_collections/convoy/upgrade
mkdir -p "$tree"
git ls-files -z -- "${files[@]}" | xargs -0 cp -d --parents -t "$tree"
cd "$tree"

sanity() { "$root/.venv/bin/ansible-test" sanity --local --requirements --python "$python" "${left_out[@]}" --color no; }

if sanity >"$work/log" 2>&1; then exit; fi
script=$(sed -n 's/.*downloaded and saved to: //p' "$work/log" | head -n 1)
[ -n "$script" ] || { cat "$work/log"; exit 1; }
version=$(basename "$script" .py | sed 's/^get_pip_//; s/_/./g')
cat >"$script" <<EOF
import subprocess
import sys

# A separate process, because ensurepip disables pip's configuration in its process.
subprocess.run([sys.executable, "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip==$version"], check=True)
EOF
sanity
