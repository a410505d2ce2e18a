# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""locked_for.py PYTHON FILE: prints the requirements of a locked file that another Python needs, such as 3.12.

pip compares the markers with the Python that runs it, also with ``--python-version``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement


def locked_for(python: str, text: str) -> Iterator[str]:
    """Return the requirements that a Python needs, one in a line, with their hashes and without markers.

    :param python: its minor version, such as 3.12.
    """
    facts = {"python_version": python, "python_full_version": f"{python}.0"}
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = line.partition("#")[0].split("--hash=")
        if not requirement.strip():
            continue
        found = Requirement(requirement)
        if found.marker is None or found.marker.evaluate(facts):
            yield " ".join([f"{found.name}{found.specifier}", *(f"--hash={one.strip()}" for one in hashes)])


if __name__ == "__main__":
    for one in locked_for(sys.argv[1], Path(sys.argv[2]).read_text(encoding="utf-8")):
        print(one)
