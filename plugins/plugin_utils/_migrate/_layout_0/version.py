# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removes white space around ``current_version``, which old tools wrote."""

from __future__ import annotations

from ....module_utils._codecs.values import bare_text, text_of
from ....module_utils._common.errors import UpgradeError
from ....module_utils._common.names import check_version
from ....module_utils._consul.operations import Change, compare_and_put
from ..step import KeyMove, KeyProblem, KeysFound

_FIX = "Set it to the version that the fleet should run, or delete it"


def version_problems(found: KeysFound) -> list[KeyProblem]:
    """Return the problem with the key, if there is one."""
    key = found.keys.current_version
    entry = found.entries.get(key)
    if entry is None:
        return []
    if text_of(entry.value) is None:
        return [KeyProblem(key, "holds bytes that are not UTF-8 text", f"{_FIX}.")]
    try:
        text = bare_text(entry.value)
        if text is not None:
            check_version(text, key)
    except UpgradeError as error:
        return [KeyProblem(key, f"is not a version ({error.message})", f"{_FIX}.")]
    return []


def moves(found: KeysFound) -> list[KeyMove]:
    """Return the move that removes the white space; empty if there is none."""
    key = found.keys.current_version
    entry = found.entries.get(key)
    text, bare = (None, None) if entry is None else (text_of(entry.value), bare_text(entry.value))
    if entry is None or text is None or bare is None or text == bare:
        return []
    operations = (compare_and_put(key, bare, entry.modify_index),)
    return [KeyMove("version without white space", f"{text!r} is {bare!r}", operations, (Change(key, text, bare),))]
