#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# build.sh [VERSION [PYTHON]]: builds .cache/deb/convoy-node_*.deb, which installs the node agent without Ansible having to reach the host. It has
# Ansible and the Consul client in the locked versions, for one minor version of Python (3.11, that of Debian 12, by default).
set -euo pipefail
cd "$(dirname "$0")/../.."

version=${1:-$(sed -n 's/^version: //p' galaxy.yml)} python=${2:-3.11}
work=.cache/deb
tree=$work/tree
release=$tree/usr/share/convoy-node/release
libraries=$release/venv/lib/python$python/site-packages
arch=$(dpkg --print-architecture)
[[ $version =~ ^[0-9][A-Za-z0-9.+~]*$ ]] || { printf 'deb: VERSION %q is no version of a Debian package\n' "$version" >&2; exit 2; }
[[ $python =~ ^3\.1[0-9]$ ]] || { printf 'deb: PYTHON %q is not 3.10 or later, which Ansible needs\n' "$python" >&2; exit 2; }

rm -rf "$tree"
mkdir -p "$release/bin" "$tree/DEBIAN" "$tree/usr/sbin" "$tree/lib/systemd/system" "$tree/etc/convoy/validation.d"

# The same files as those of an enrolment.
collection=$release/collections/ansible_collections/convoy/upgrade
mkdir -p "$collection"
tar --create --exclude=__pycache__ --exclude='.*_cache' meta playbooks plugins roles | tar --extract -C "$collection"
tar --create --exclude=__pycache__ --exclude='.*_cache' --exclude=ruff.toml agent | tar --extract -C "$release"
# pip also compares what a package requires with the Python that runs it. The locked versions fit this one.
.venv/bin/python tools/deb/locked_for.py "$python" requirements/locked/runtime.txt >"$work/requirements.txt"
.venv/bin/pip --quiet --quiet install --disable-pip-version-check --no-compile --target "$libraries" --python-version "$python" --no-deps \
    --ignore-requires-python --require-hashes --only-binary :all: -r "$work/requirements.txt"
rm -rf "$libraries/bin" "$libraries/ansible_test"
# With a Python of its own, as an enrolled release has. In PYTHONPATH, the libraries would also be those of other programs, such as commands in tasks
# of services. Modules find the libraries of the system.
mkdir "$release/venv/bin"
ln -s "/usr/bin/python$python" "$release/venv/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = true\nversion = %s\n' "$python" >"$release/venv/pyvenv.cfg"

# Named after its content, so that two builds of one version are two releases.
content=$(cd "$release" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-10)
.venv/bin/python - "$tree" "$version-$content" <<'PYTHON'
import json
import sys
from pathlib import Path

import jinja2

tree, name = Path(sys.argv[1]), sys.argv[2]
release = tree / "usr/share/convoy-node/release"
templates = jinja2.Environment(loader=jinja2.FileSystemLoader("roles/puppet_gate/templates"), keep_trailing_newline=True)
values = {
    "ansible_managed": "Part of the package convoy-node",
    "puppet_gate_home": "/opt/convoy",
    "puppet_gate_settings_dir": "/etc/convoy",
    "puppet_gate_release_python": "venv/bin/python",
}
for unit in ("convoy-node.service", "convoy-node-run.service", "convoy-node-job.service", "convoy-node.path"):
    (tree / "lib/systemd/system" / unit).write_text(templates.get_template(f"{unit}.j2").render(values))
templates.filters["quote"] = str
program = release / "bin/convoy-node"
program.write_text(templates.get_template("convoy-node.sh.j2").render(values))
program.chmod(0o755)
(release / "release.json").write_text(json.dumps({"name": name, "python": values["puppet_gate_release_python"]}) + "\n")
PYTHON
ln -s /opt/convoy/current/bin/convoy-node "$tree/usr/sbin/convoy-node"

minor=${python#3.}
cat >"$tree/DEBIAN/control" <<CONTROL
Package: convoy-node
Version: $version
Architecture: $arch
Maintainer: The convoy.upgrade authors <convoy@example.com>
Installed-Size: $(du -sk "$tree" | cut -f1)
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1)))
Recommends: puppet-agent | puppet | openvox-agent, consul
Section: admin
Priority: optional
Protected: yes
Description: node agent of convoy.upgrade
 Waits for the gate of this host in Consul, upgrades the host when it is
 admitted, and runs Puppet. Needs the settings /etc/convoy/node.json.
CONTROL
for script in postinst prerm postrm; do
    install -m 0755 "tools/deb/$script" "$tree/DEBIAN/$script"
done
package=$work/convoy-node_${version}_${arch}.deb
dpkg-deb --root-owner-group -Zgzip -z6 --build "$tree" "$package" >/dev/null
rm -rf "$tree"
printf 'deb: %s\n' "$package"
