#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Builds the artifact from a clean checkout, looks at what is in it, installs it, and runs a playbook from it.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { printf 'artifact: %s\n' "$*" >&2; exit 1; }

# As it is here and now, without what git ignores: a cache in it would be the manifest's fault.
mkdir "$work/checkout" "$work/collections"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/checkout"
mkdir -p "$work/checkout/.cache" "$work/checkout/plugins/__pycache__"
touch "$work/checkout/.cache/left-over" "$work/checkout/plugins/__pycache__/left-over.pyc"
galaxy=$root/.venv/bin/ansible-galaxy
(cd "$work/checkout" && "$galaxy" collection build --output-path "$work" >/dev/null)
artifact=$(echo "$work"/convoy-upgrade-*.tar.gz)

tar tzf "$artifact" >"$work/files"
unwanted=$(grep -E '^(tests|tools|requirements|extensions|\.|docs/_)|Makefile|pyproject|\.pyc$|left-over' "$work/files" || true)
[ -z "$unwanted" ] || die "$(printf 'holds what is not for users:\n%s' "$unwanted")"
for wanted in plugins/modules/consul_upgrade_plan.py plugins/module_utils/_model/planner.py plugins/filter/fleet.yml \
    plugins/inventory/consul_fleet.py playbooks/node.yml playbooks/enroll.yml roles/puppet_gate/templates/node.yml.j2 \
    playbooks/upgrade.yml playbooks/group_vars/all.yml roles/rollout/tasks/main.yml meta/runtime.yml LICENSE README.md \
    schemas/instructions.json schemas/upgrade.json; do
    grep -qx "$wanted" "$work/files" || die "lacks $wanted"
done

"$galaxy" collection install --force "$artifact" -p "$work/collections" >/dev/null 2>&1
# From the installed copy alone: a link in .venv would otherwise be what answers.
if ! (cd "$work" && ANSIBLE_COLLECTIONS_PATH=$work/collections ANSIBLE_COLLECTIONS_SCAN_SYS_PATH=false \
    ANSIBLE_LOCALHOST_WARNING=false CONSUL_HTTP_ADDR="${CONSUL_HTTP_ADDR:-127.0.0.1:1}" \
    "$root/.venv/bin/ansible-playbook" convoy.upgrade.status -e upgrade_consul_timeout=0.2 >"$work/log" 2>&1); then
    grep -q "can't be reached" "$work/log" || { cat "$work/log"; die "its playbook does not run"; }
fi
printf 'artifact: %s installs and runs, with %s files\n' "$(basename "$artifact")" "$(wc -l <"$work/files")"
