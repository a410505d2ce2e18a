# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian packages and apt repositories of our own: the "repository snapshots" that the nodes are upgraded to."""

from __future__ import annotations

import email
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package.

    :param files: path -> content; those under ``/etc`` are configuration files.
    :param depends: as in the control file.
    :param scripts: name of a maintainer script, such as ``postinst`` -> content.
    """

    name: str
    version: str
    files: Mapping[str, str] = field(default_factory=dict)
    depends: str = ""
    scripts: Mapping[str, str] = field(default_factory=dict)

    def build(self, folder: Path) -> Path:
        """Build it into a folder; return the file."""
        target = folder / f"{self.name}_{self.version}_all.deb"
        with tempfile.TemporaryDirectory() as work:
            tree = Path(work)
            tree.chmod(0o755)
            for path, text in self.files.items():
                file = tree / path.lstrip("/")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                file.chmod(0o755 if text.startswith("#!") else 0o644)
            control = tree / "DEBIAN"
            control.mkdir()
            (control / "control").write_text(self.control())
            (control / "conffiles").write_text("".join(f"{path}\n" for path in self.files if path.startswith("/etc/")))
            for name, text in self.scripts.items():
                (control / name).write_text(text)
                (control / name).chmod(0o755)
            command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(target)]
            subprocess.run(command, check=True, capture_output=True)
        return target

    def control(self) -> str:
        """Return the package's control file."""
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": "all",
            "Maintainer": "The lab <lab@localhost>",
            "Depends": self.depends,
            "Description": f"{self.name} of the lab",
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def repository(folder: Path, packages: Iterable[Package | Path]) -> str:
    """Make an apt repository in a folder; return what a node's list of sources has to say.

    It is written beside and put in place at once, so that no one reads half of one.

    :param packages: what to build, or the path of a package that is built, which is copied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for package in packages:
        if isinstance(package, Package):
            file, control = package.build(folder), package.control()
        else:
            file, control = Path(shutil.copy(package, folder)), control_of(package)
        data = file.read_bytes()
        entries.append(
            f"{control}Filename: ./{file.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    new = folder / "Packages.new"
    new.write_text("\n".join(entries))
    new.replace(folder / "Packages")
    return source(str(folder))


def control_of(file: Path) -> str:
    """Return the control file of a package that is built."""
    return subprocess.run(["dpkg-deb", "--field", file], check=True, capture_output=True, text=True).stdout


def download(folder: Path, names: Iterable[str]) -> list[Path]:
    """Get real packages from this machine's sources into a folder, in the versions that the nodes have.

    :raises RuntimeError: if apt can't.
    """
    folder.mkdir(parents=True, exist_ok=True)
    selected = list(names)
    for how in ((), ("now",)):
        # A version may be gone since the lists were made.
        asked = subprocess.run([HERE / "lists.sh", *how], check=True, capture_output=True, text=True)
        options = (f"Dir::State::lists={asked.stdout.strip()}", "Dir::Cache::pkgcache=", "APT::Sandbox::User=root")
        command = ["apt-get", "-q", *(f"-o{option}" for option in options), "download", *selected]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not done.returncode:
            break
    if done.returncode:
        raise RuntimeError(f"apt-get can't download {' '.join(selected)}: {done.stderr.strip()}")
    return [max(folder.glob(f"{name}_*.deb"), key=lambda one: one.stat().st_mtime) for name in selected]


def remade(file: Path, folder: Path, suffix: str, scripts: Mapping[str, str] | None = None) -> Path:
    """Make a later version of a real package; return the new package.

    It has a file ``/usr/share/doc/<package>/remade``, with its version.

    :param file: the real package.
    :param suffix: what the version ends with, such as ``+v2``. Other packages that are remade in the same way are
        depended on in their later version, where they have to be of the same.
    :param scripts: name of a maintainer script -> what to have instead of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fields = email.message_from_string(control_of(file))
    name, version = fields["Package"], f"{fields['Version']}{suffix}"
    target = folder / f"{name}_{version.partition(':')[2] or version}_{fields['Architecture']}.deb"
    with tempfile.TemporaryDirectory() as work:
        tree = Path(work) / "tree"
        subprocess.run(["dpkg-deb", "--raw-extract", file, tree], check=True)
        control = tree / "DEBIAN/control"
        text = re.sub(r"(?m)^Version: .*$", f"Version: {version}", control.read_text())
        control.write_text(re.sub(rf"\(= {re.escape(fields['Version'])}\)", f"(= {version})", text))
        for script, content in (scripts or {}).items():
            (tree / "DEBIAN" / script).write_text(content)
            (tree / "DEBIAN" / script).chmod(0o755)
        mark = tree / f"usr/share/doc/{name}/remade"
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(f"{version}\n")
        command = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(target)]
        subprocess.run(command, check=True, capture_output=True)
    return target


def source(place: str) -> str:
    """Return the line of a node's list of sources for a repository, a folder or a URL."""
    return f"deb [trusted=yes] {place if '://' in place else f'file:{place}'} ./"
