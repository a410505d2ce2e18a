# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads YAML files that an operator names, which may have values of ansible-vault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError

from ...module_utils._common.names import did_you_mean


def load_settings(loader: Any, file: str) -> Any:
    """Return the content of a file.

    :param loader: Ansible's, which knows the vault passwords.
    :param file: relative to the current folder. The loader alone would search beside the playbook.
    :raises ValueError: if it can't be read; its text is the end of a sentence.
    """
    path = Path.cwd() / file
    if not path.is_file():
        raise ValueError("it does not exist or is not a file")
    try:
        return loader.load_from_file(str(path))
    except (AnsibleError, OSError) as error:
        # ansible-core 2.17 has the cause as an attribute of its own.
        cause = error.__cause__ or getattr(error, "orig_exc", None)
        mark = getattr(cause, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"it can't be read{where} ({_problem(error, getattr(cause, 'problem', None))})") from None


def _problem(error: Exception, problem: str | None) -> str:
    """Return what is wrong with a file without text of the file, which may be secret. Some releases of Ansible add the line.

    :param problem: what the YAML parser says; None if the file is not even that.
    """
    text = problem or str(error).partition("\n")[0]
    # The parser names an alias or a tag, which may be a password with an asterisk. What it expects are signs.
    return text if "expected" in text or not problem else text.partition(" '")[0].partition(' "')[0]


def refuse_unknown(found: Mapping[Any, Any], known: Sequence[str], prefix: str = "") -> None:
    """Refuse keys that are not known.

    :param prefix: what precedes the keys in messages.
    :raises ValueError: for the first one; its text is the end of a sentence.
    """
    for key in found:
        if key not in known:
            nearest = did_you_mean(str(key), known) or "."
            raise ValueError(f"unknown key {prefix}{key}{nearest} Known are {', '.join(known)}")
