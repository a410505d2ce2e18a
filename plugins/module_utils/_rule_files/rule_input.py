# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the rules of a rollout from their sources: inline, a file, the ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import listing
from .._common.sanitize import truncate, truncated_repr
from .._rule_checks.changes import WITH_RULES
from .._rule_checks.sources import RuleSource, disagreements, leaves
from .._rules.instructions import Instructions, merge, name_of, parse, with_order

try:
    import yaml

    class _StrictLoader(yaml.SafeLoader):
        """A safe loader that refuses duplicate keys in a mapping, of which YAML would keep the last one silently, and numbers that YAML would change."""

    def _strict_mapping(loader: Any, node: Any) -> dict[Any, Any]:
        # Keys from a merge key (<<) may be overridden, so only the mapping's own keys are compared.
        own = [key for key, _value in node.value if key.tag != "tag:yaml.org,2002:merge"]
        found: dict[Any, Any] = loader.construct_mapping(node, deep=True)
        names = set()
        for key in own:
            name = loader.construct_object(key, deep=True)
            if name in names:
                raise _DuplicateKey(name, key.start_mark.line + 1)
            names.add(name)
        return found

    def _strict_integer(loader: Any, node: Any) -> Any:
        if ":" in node.value:
            # A time, such as 22:00, and no number to the base of 60.
            return node.value
        if re.fullmatch("[-+]?0[0-9_]+", node.value):
            raise _OctalNumber(node.value, node.start_mark.line + 1)
        return loader.construct_yaml_int(node)

    _StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _strict_mapping)
    _StrictLoader.add_constructor("tag:yaml.org,2002:int", _strict_integer)
    HAS_YAML = True
except ImportError:
    HAS_YAML = False

# The README of python-jiocloud documents the first one; its code reads the second one.
DEFAULT_FILES = ("/etc/jio-upgrade.json", "/etc/jiocloud-upgrade.json")
INLINE = "instructions"


def given_rules(inline: Mapping[str, Any] | None, path: str | None) -> dict[str, Any] | None:
    """Return the rules of a call in their stored form; None if it has none.

    Keys that are empty on purpose are kept, because they remove rules of a running rollout.

    :param inline: rules given as a value. They may add to those of a named file, and override those of the default file.
    :param path: a JSON or YAML file; None for the default file, which may be missing; empty for no file.
    :raises UpgradeError: ``bad_instructions``, ``bad_instructions_file``, ``conflicting_rules``.
    """
    sources = sources_of(inline, path)
    return merged(sources) if sources else None


def sources_of(inline: Mapping[str, Any] | None, path: str | None) -> tuple[RuleSource, ...]:
    """Return the sources of the rules of a call. Later sources override earlier ones.

    :raises UpgradeError: as :func:`given_rules`.
    """
    file = default_file() if path is None else path
    from_file = read_file(file) if file else None
    if from_file is None:
        return () if inline is None else (RuleSource(INLINE, _stored(inline)),)
    try:
        # Two valid sources can be invalid together, such as in role_order.
        _stored(merge(from_file, inline or {}))
        below = RuleSource(file, _stored(from_file), is_default=path is None)
        above = RuleSource(INLINE, _stored(inline or {}))
    except UpgradeError as error:
        where = f" (inline and {file})" if inline else f" (in {file})"
        raise UpgradeError(error.code, error.message + where, **error.details) from error
    if path:
        _refuse_disagreement(above, below)
    return (below, above) if inline is not None else (below,)


def merged(sources: Sequence[RuleSource]) -> dict[str, Any]:
    """Return the merged rules of all sources in their stored form. Later sources override earlier ones."""
    found: dict[str, Any] = {}
    for one in sources:
        found = merge(found, one.rules)
    return _stored(found)


def default_file() -> str:
    """Return the file that is read if none is named; empty if there is none.

    :raises UpgradeError: ``conflicting_rules`` if there are two that differ; ``bad_instructions``, ``bad_instructions_file`` if one of
        two is invalid.
    """
    files = [file for file in DEFAULT_FILES if Path(file).exists()]
    if len(files) == 2:
        one, other = (
            {key: value for key, value in leaves(_stored(read_file(file))) if value is not None} for file in files
        )
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                first, second = (truncated_repr(rules[key]) if key in rules else "not given" for rules in (one, other))
                raise UpgradeError(
                    "conflicting_rules",
                    f"instructions: {key} is {first} in {files[0]}, and {second} in {files[1]}. Both are default files, so nothing is "
                    "changed. Remove one of them, or choose one with -e instructions_file=FILE.",
                    key=key,
                    files=files,
                )
    return files[0] if files else ""


def _refuse_disagreement(inline: RuleSource, file: RuleSource) -> None:
    found = list(disagreements(inline.rules, file.rules))
    if not found:
        return
    key, mine, yours = found[0]
    more = f" They also differ in {listing([name for name, _mine, _yours in found[1:]])}." if found[1:] else ""
    raise UpgradeError(
        "conflicting_rules",
        f"instructions: {key} is {truncated_repr(mine)} in {inline.name}, and {truncated_repr(yours)} in {file.name}.{more} Nothing is changed, "
        "because it is unclear which one applies. Remove it from one of them. To use only the file, give -e '{\"instructions\": {}}'; to "
        "use only instructions, give -e instructions_file=.",
        key=key,
        keys=[name for name, _mine, _yours in found],
    )


def _stored(given: Mapping[str, Any]) -> dict[str, Any]:
    plain = parse(given).plain()
    for key in WITH_RULES:
        if given.get(key):
            # A value that is not stored is empty, or the default.
            empty = {name: None if value else value for name, value in given[key].items()}
            plain[key] = {**empty, **plain.get(key, {})}
    return plain | {key: value for key, value in given.items() if value is not None and name_of(key) not in plain}


def effective_rules(
    given: Mapping[str, Any] | None, stored: Mapping[str, Any], more_order: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Instructions]:
    """Return the rules that apply, as stored and as parsed.

    :param given: the rules of the call, which replace the stored ones; None for the stored ones.
    :param more_order: role order that is added to them.
    :raises UpgradeError: ``bad_instructions``.
    """
    rules = with_order(stored if given is None else given, more_order or {})
    return rules, parse(rules)


def read_file(path: str) -> dict[str, Any]:
    """Return the instructions in a file; empty for an empty file.

    :raises UpgradeError: ``bad_instructions_file``, with the line if the parser gives it.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(path, getattr(error, "strerror", None) or str(error)) from error
    if not text.strip():
        return {}
    data = _json_or_yaml(path, text)
    if not isinstance(data, dict):
        raise _bad(path, "it is not a mapping of names to values")
    return _without_numbers_as_times(data)


def _without_numbers_as_times(rules: dict[str, Any]) -> dict[str, Any]:
    """Return the rules with numbers in windows as text, which is no time: only a value that Ansible has read may be a time that became a number."""
    windows = rules.get("windows")
    if not isinstance(windows, list):
        return rules
    plain = [
        {key: str(value) if key in ("from", "to") and isinstance(value, int) else value for key, value in one.items()}
        if isinstance(one, Mapping)
        else one
        for one in windows
    ]
    return {**rules, "windows": plain}


def _json_or_yaml(path: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique_sources)
    except json.JSONDecodeError as error:
        no_json = f"line {error.lineno}, column {error.colno}: {error.msg}"
        if not HAS_YAML:
            raise _bad(path, f"{no_json} (for YAML, install PyYAML where the module runs)") from error
    except _DuplicateKey as error:
        raise _bad(path, str(error)) from error
    except (RecursionError, ValueError) as error:
        raise _bad(path, _too_large(error)) from error
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, _DuplicateKey, _OctalNumber) as error:
        # A file that begins with { is more likely bad JSON than bad YAML.
        is_json = text.lstrip().startswith("{") and isinstance(error, yaml.YAMLError)
        raise _bad(path, no_json if is_json else " ".join(str(error).split())) from error
    except (RecursionError, ValueError) as error:
        raise _bad(path, _too_large(error)) from error


def _too_large(error: Exception) -> str:
    # ValueError: a number with thousands of digits, or an invalid date in YAML.
    return "it is nested too deeply" if isinstance(error, RecursionError) else truncate(str(error))


class _DuplicateKey(Exception):
    """A duplicate key in a mapping."""

    def __init__(self, key: object, line: int | None = None) -> None:
        where = f"line {line}: " if line else ""
        super().__init__(f"{where}duplicate key {key!r} in one mapping; keep one of them")


class _OctalNumber(Exception):
    """A number with a leading zero."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(
            f"line {line}: {text} begins with 0, so YAML reads it to the base of 8; write it without the 0, or put it in quotes"
        )


def _unique_sources(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(key)
        found[key] = value
    return found


def _bad(path: str, why: str) -> UpgradeError:
    return UpgradeError("bad_instructions_file", f"instructions_file: {path} can't be used: {why}.", path=path)
