# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Debian packages and apt repositories of our own: the "repository snapshots" that the nodes are upgraded to."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


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


def repository(folder: Path, packages: Iterable[Package]) -> str:
    """Make an apt repository in a folder; return what a node's list of sources has to say.

    It is written beside and put in place at once, so that nobody reads half of one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for package in packages:
        file = package.build(folder)
        data = file.read_bytes()
        entries.append(
            f"{package.control()}Filename: ./{file.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    new = folder / "Packages.new"
    new.write_text("\n".join(entries))
    new.replace(folder / "Packages")
    return source(str(folder))


def source(place: str) -> str:
    """Return the line of a node's list of sources for a repository, a folder or a URL."""
    return f"deb [trusted=yes] {place if '://' in place else f'file:{place}'} ./"
