# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the key ``upgrade_path`` of a service's ``meta/upgrade.yml``: the versions and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import UNQUOTED, check_new_version
from .refusal import refusal

# The default folder for the files of versions.
_FOLDER = "upgrade_to"


def read_versions(value: object, where: str) -> dict[str, str]:
    """Return version -> file for the value of ``upgrade_path``: a list of versions, or a mapping of versions to files.

    :param where: file and line.
    :raises UpgradeError: ``bad_service``.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        given = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        given = {}
        for version in value:
            if isinstance(version, str) and version in given:
                raise refusal(where, f"upgrade_path: {version} is listed twice. Remove one of them.")
            given[_version(version, where)] = f"{_FOLDER}/{version}.yml"
    else:
        raise refusal(
            where, f"upgrade_path: {value!r} is neither a list of versions nor a mapping of versions to files."
        )
    for version, file in given.items():
        _version(version, where)
        if not isinstance(file, str) or not file or file.startswith("/") or ".." in Path(file).parts:
            raise refusal(
                where,
                f"upgrade_path: {file!r} of {version} is not a path below the folder tasks, such as {_FOLDER}/2.4.yml.",
            )
    return given


def _version(version: object, where: str) -> str:
    if not isinstance(version, str):
        raise refusal(
            where,
            f"upgrade_path: {version!r} {UNQUOTED}",
        )
    try:
        return check_new_version(version, f"{where}: upgrade_path")
    except UpgradeError as error:
        raise refusal(where, f"upgrade_path: {error.message}") from error
