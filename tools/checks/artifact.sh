#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Builds the artifact from a clean checkout, checks its files, installs it, runs a playbook from it, and creates the build context of its execution
# environment.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { printf 'artifact: %s\n' "$*" >&2; exit 1; }

# A copy of the working tree without files that git ignores. If the artifact has a cache, build_ignore is wrong.
mkdir "$work/checkout" "$work/collections"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp -d --parents -t "$work/checkout"
mkdir -p "$work/checkout/.cache" "$work/checkout/plugins/__pycache__"
touch "$work/checkout/.cache/left-over" "$work/checkout/plugins/__pycache__/left-over.pyc"
galaxy=$root/.venv/bin/ansible-galaxy
(cd "$work/checkout" && "$galaxy" collection build --output-path "$work" >/dev/null)
artifact=$(echo "$work"/convoy-upgrade-*.tar.gz)

tar tzf "$artifact" >"$work/files"
unwanted=$(grep -E '^(tests|tools|requirements/(locked/)?(test|docs|matrix)|extensions/molecule|\.|docs/_)|Makefile|pyproject|\.pyc$|left-over' "$work/files" || true)
[ -z "$unwanted" ] || die "$(printf 'holds what is not for users:\n%s' "$unwanted")"
for required in plugins/modules/consul_upgrade_plan.py plugins/module_utils/_planner/reconcile.py plugins/filter/fleet.yml \
    plugins/inventory/consul_fleet.py playbooks/node.yml playbooks/enroll.yml roles/puppet_gate/templates/node.json.j2 agent/convoy_node/resident.py \
    playbooks/upgrade.yml playbooks/group_vars/all.yml roles/nginx/tasks/upgrade_tasks.yml meta/runtime.yml LICENSE README.md \
    schemas/instructions.json schemas/upgrade.json schemas/page.json schemas/page_hosts.json schemas/page_hosts_index.json schemas/page_changes.json extensions/eda/plugins/event_source/rollout.py \
    plugins/plugin_utils/_pages/templates/live.html.j2 plugins/plugin_utils/_pages/templates/live.js plugins/plugin_utils/_pages/templates/style.css meta/execution-environment.yml requirements/runtime.txt requirements/locked/runtime.txt bindep.txt \
    docs/pictures/data_flow.svg; do
    grep -qx "$required" "$work/files" || die "lacks $required"
done

"$galaxy" collection install --force "$artifact" -p "$work/collections" >/dev/null 2>&1
installed=$work/collections/ansible_collections/convoy/upgrade
[ -e "$installed/playbooks/internal/group_vars/all.yml" ] || die "playbooks/internal does not see the defaults once it is installed"
PYTHONPATH=$root/tools "$root/.venv/bin/python" "$root/tools/checks/run_artifact.py" "$work/collections" >"$work/log" 2>&1 || { cat "$work/log"; die "its playbooks do not run"; }

# No image is built, because that needs a container engine. Only the build context is created, in two ways: from this definition, and from another
# one that lists the collection.
"$root/.venv/bin/ansible-builder" create --file "$installed/meta/execution-environment.yml" --context "$work/context" \
    --output-filename Containerfile >"$work/log" 2>&1 || { cat "$work/log"; die "its execution environment is refused"; }
for line in 'FROM \$EE_BASE_IMAGE' 'COPY _build/requirements.txt' 'COPY _build/bindep.txt' 'ansible-galaxy collection install'; do
    grep -q "$line" "$work/context/Containerfile" || die "the Containerfile of its execution environment lacks: $line"
done
cmp "$root/requirements/runtime.txt" "$work/context/_build/requirements.txt"
cmp "$root/bindep.txt" "$work/context/_build/bindep.txt"
grep -q 'name: convoy.upgrade' "$work/context/_build/requirements.yml" || die "its execution environment lacks the collection"
"$root/.venv/bin/python" "$work/context/_build/scripts/introspect.py" introspect "$work/collections" >"$work/needs"
for line in py-consul openssh-client; do
    grep -q "$line.*from collection convoy.upgrade" "$work/needs" || die "other execution environments would lack $line"
done

printf 'artifact: %s installs and runs, with %s files\n' "$(basename "$artifact")" "$(wc -l <"$work/files")"
