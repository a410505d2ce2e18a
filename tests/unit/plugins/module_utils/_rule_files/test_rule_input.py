# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sources of rules: inline, a file, the ledger; and the messages for invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files import rule_input
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files.rule_check import check_rules
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files.rule_input import (
    effective_rules,
    given_rules,
    read_file,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.caps import Cap


@pytest.fixture(autouse=True)
def default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the default file, in a folder that the test may write to. The file does not exist yet."""
    path = tmp_path / "jio-upgrade.json"
    monkeypatch.setattr(rule_input, "DEFAULT_FILES", (str(path), str(tmp_path / "jiocloud-upgrade.json")))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rules.yml"


def refusal(path: Path) -> str:
    with pytest.raises(UpgradeError) as caught:
        read_file(str(path))
    assert caught.value.code == "bad_instructions_file"
    assert caught.value.details == {"path": str(path)}
    start, end = f"instructions_file: {path} can't be used: ", "."
    assert caught.value.message.startswith(start)
    assert caught.value.message.endswith(end)
    return caught.value.message[len(start) : -len(end)]


# Files


@pytest.mark.parametrize(
    "text",
    [
        '{"rolling_rules": {"global": 2}, "role_order": {"compute": ["controller"]}}',
        "rolling_rules:\n  global: 2\nrole_order:\n  compute: [controller]\n",
        "\ufeffrolling_rules: {global: 2}\nrole_order: {compute: [controller]}\n",
    ],
)
def test_json_and_yaml_are_read_alike(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")

    assert read_file(str(file)) == {"rolling_rules": {"global": 2}, "role_order": {"compute": ["controller"]}}


@pytest.mark.parametrize("text", ["", "\n  \n"])
def test_an_empty_file_says_nothing(file: Path, text: str) -> None:
    file.write_text(text)

    assert read_file(str(file)) == {}


@pytest.mark.parametrize("text", ["[1]", "7", '"text"', "- a\n- b\n", "just words", "# only a comment\n"])
def test_a_file_without_a_mapping_is_refused(file: Path, text: str) -> None:
    file.write_text(text)

    assert refusal(file) == "it is not a mapping of names to values"


def test_broken_json_is_reported_with_its_line(file: Path) -> None:
    file.write_text('{\n  "rolling_rules": {\n    "global": 2,,\n  }\n}')

    assert refusal(file).startswith("line 3, column 17: ")


def test_broken_yaml_is_reported_with_its_line(file: Path) -> None:
    file.write_text("rolling_rules:\n  global: 2\n fleet: 3\n")

    assert "line 3, column 2" in refusal(file)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', ""),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4: "),
    ],
)
def test_a_duplicate_key_is_refused_and_not_dropped(file: Path, text: str, where: str) -> None:
    file.write_text(text)

    assert refusal(file) == f"{where}duplicate key 'c' in one mapping; keep one of them"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("rolling_rules:\n  global: 010", "line 2: 010 begins with 0, so YAML reads it to the base of 8"),
        ("stages: [{hosts: 1, soak: 0600}]", "line 1: 0600 begins with 0"),
        ('{"rolling_rules": {"global": 010}}', "line 1: 010 begins with 0"),
    ],
)
def test_a_number_that_yaml_would_change_is_refused(file: Path, text: str, where: str) -> None:
    file.write_text(text)
    assert refusal(file).startswith(where)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("health: {soak: 1:30}", "health.soak: '1:30' is not a duration"),
        ("windows: [{from: 800, to: 1200}]", "windows[0].from: '800' is not a time of day"),
        ('{"windows": [{"from": "08:00", "to": 1200}]}', "windows[0].to: '1200' is not a time of day"),
    ],
)
def test_a_number_is_no_time_and_a_time_is_no_duration(file: Path, text: str, key: str) -> None:
    file.write_text(text)
    with pytest.raises(UpgradeError) as caught:
        given_rules(None, str(file))
    assert key in caught.value.message


def test_times_without_quotes_are_read_as_they_are_written(file: Path) -> None:
    file.write_text("windows: [{from: 22:00, to: 05:30}, {from: 0:30, to: 9:00}]")
    found = given_rules(None, str(file)) or {}
    assert [(one["from"], one["to"]) for one in found["windows"]] == [("22:00", "05:30"), ("00:30", "09:00")]


def test_yaml_may_override_what_it_merges_in(file: Path) -> None:
    file.write_text("base: &base {a: 1, b: 1}\nover: {<<: *base, a: 2}\n")

    assert read_file(str(file))["over"] == {"a": 2, "b": 1}


def test_a_template_that_was_not_filled_in_is_shown_with_its_line(file: Path) -> None:
    file.write_text("rolling_rules:\n  global: {{ cap }}\n")

    assert "unhashable key" in refusal(file)
    assert "line 2" in refusal(file)


def test_yaml_that_would_build_objects_is_refused(file: Path) -> None:
    file.write_text("a: !!python/object/apply:os.getcwd []\n")

    assert "could not determine a constructor" in refusal(file)


def test_a_file_that_is_missing_is_reported(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nowhere.yml") == "No such file or directory"


def test_a_file_that_is_a_directory_is_reported(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "Is a directory"


def test_a_file_that_is_no_text_is_reported(file: Path) -> None:
    file.write_bytes(b"\xff\xfe{}")

    assert "can't decode byte 0xff" in refusal(file)


def test_without_a_yaml_library_json_is_read_and_yaml_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_input, "HAS_YAML", False)
    file.write_text('{"rolling_rules": {}}')
    assert read_file(str(file)) == {"rolling_rules": {}}

    file.write_text("rolling_rules:\n")
    assert refusal(file).endswith("(for YAML, install PyYAML where the module runs)")


# Rules of a call


def test_nothing_is_given() -> None:
    assert given_rules(None, None) is None


def test_no_rules_are_something_else_than_none_given() -> None:
    assert given_rules({}, None) == {}


def test_inline_rules_come_in_their_stored_form() -> None:
    assert given_rules({"rolling_rules": {"global": "3"}, "role_dependencies": {"a": "b"}}, None) == {
        "rolling_rules": {"global": 3},
        "role_order": {"a": ["b"]},
    }


def test_keys_that_are_empty_on_purpose_are_kept_and_a_null_is_not() -> None:
    given = {"rolling_rules": {"global": 1}, "stages": [], "failure_rules": {}, "role_dependencies": {}, "health": None}

    assert given_rules(given, None) == {name: value for name, value in given.items() if name != "health"}


def test_inline_rules_and_those_of_a_file_add_up(file: Path) -> None:
    file.write_text("rolling_rules: {global: 1, roles: {compute: 5, network: 2}}\nrole_order: {compute: network}\n")

    assert given_rules({"rolling_rules": {"roles": {"web": "10%"}, "global": "1"}}, str(file)) == {
        "rolling_rules": {"global": 1, "roles": {"compute": 5, "network": 2, "web": "10%"}},
        "role_order": {"compute": ["network"]},
    }


@pytest.mark.parametrize(
    ("inline", "in_file", "message"),
    [
        (
            {"rolling_rules": {"global": 10}},
            "rolling_rules: {global: 1}",
            "rolling_rules.global is 10 in instructions, and 1 in",
        ),
        ({"stages": []}, "stages: [{hosts: 1}]", "stages is [] in instructions, and [{"),
        (
            {"role_dependencies": {"a": "b"}},
            "role_dependencies: {a: c}",
            "role_order.a is ['b'] in instructions, and ['c'] in",
        ),
        (
            {"rolling_rules": {"global": 10, "fleet": 3}},
            "rolling_rules: {global: 1, fleet: 4}",
            "They also differ in rolling_rules.global. Nothing is changed",
        ),
    ],
)
def test_of_two_sources_that_disagree_neither_wins_silently(
    file: Path, inline: dict[str, Any], in_file: str, message: str
) -> None:
    file.write_text(in_file)

    with pytest.raises(UpgradeError) as caught:
        given_rules(inline, str(file))

    assert caught.value.code == "conflicting_rules"
    assert message in caught.value.message
    assert str(file) in caught.value.message
    # The fixes in the message work.
    assert given_rules(None, str(file))
    assert given_rules({}, str(file)) == given_rules(None, str(file))
    assert given_rules(inline, "")


@pytest.mark.parametrize("name", ["jio-upgrade.json", "jiocloud-upgrade.json"])
def test_the_default_files_of_the_original_are_read_where_they_are(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(json.dumps({"rolling_rules": {"global": 1, "fleet": 5}}))

    assert given_rules(None, None) == {"rolling_rules": {"global": 1, "fleet": 5}}
    assert given_rules({"rolling_rules": {"global": 2}}, None) == {"rolling_rules": {"global": 2, "fleet": 5}}
    # An empty name means no file.
    assert given_rules(None, "") is None
    assert given_rules({"rolling_rules": {"global": 2}}, "") == {"rolling_rules": {"global": 2}}


def test_two_default_files_have_to_say_the_same(tmp_path: Path, file: Path) -> None:
    one, other = tmp_path / "jio-upgrade.json", tmp_path / "jiocloud-upgrade.json"
    one.write_text('{"rolling_rules": {"global": "1"}, "role_order": {"a": "b"}}')
    other.write_text('{"role_dependencies": {"a": ["b"]}, "rolling_rules": {"global": 1}}')
    assert given_rules(None, None) == {"rolling_rules": {"global": 1}, "role_order": {"a": ["b"]}}

    other.write_text('{"rolling_rules": {"global": 1}}')
    with pytest.raises(UpgradeError) as caught:
        given_rules({"rolling_rules": {"global": 3}}, None)
    assert caught.value.code == "conflicting_rules"
    assert f"role_order.a is ['b'] in {one}, and not given in {other}" in caught.value.message

    file.write_text("rolling_rules: {fleet: 2}\n")
    assert given_rules(None, str(file)) == {"rolling_rules": {"fleet": 2}}, "which are not read where a file is named"


def test_a_file_that_is_named_takes_the_place_of_the_default_one(default_file: Path, file: Path) -> None:
    default_file.write_text(json.dumps({"rolling_rules": {"global": 1}}))
    file.write_text("rolling_rules: {fleet: 2}\n")

    assert given_rules(None, str(file)) == {"rolling_rules": {"fleet": 2}}


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UpgradeError, match="No such file or directory"):
        given_rules({"rolling_rules": {}}, str(tmp_path / "nowhere.yml"))


def test_bad_rules_in_a_file_are_reported_with_the_file(file: Path) -> None:
    file.write_text("rolling_rules: {globel: 1}\n")

    with pytest.raises(UpgradeError) as caught:
        given_rules(None, str(file))

    assert caught.value.code == "bad_instructions"
    assert caught.value.message.startswith("instructions: rolling_rules.globel: unknown key; did you mean 'global'?")
    assert caught.value.message.endswith(f" (in {file})")
    assert caught.value.details["key"] == "rolling_rules.globel"


def test_bad_rules_from_the_default_file_and_inline_are_reported_with_both(default_file: Path) -> None:
    default_file.write_text('{"role_order": {"a": "b"}}')

    with pytest.raises(UpgradeError) as caught:
        given_rules({"role_dependencies": {"a": "c"}}, None)

    assert "disagrees with role_dependencies.a" in caught.value.message
    assert caught.value.message.endswith(f" (inline and {default_file})")


@pytest.mark.parametrize("named", [True, False])
def test_text_instead_of_inline_rules_is_refused_as_older_releases_of_ansible_make_it_of_dates(
    file: Path, named: bool
) -> None:
    file.write_text("rolling_rules: {global: 1}")
    text: Any = "{'freezes': [{'from': datetime.date(2026, 12, 20)}]}"
    with pytest.raises(UpgradeError) as caught:
        given_rules(text, str(file) if named else "")
    assert caught.value.code == "bad_instructions"
    assert (
        "is not a mapping of names to values. If it looks like one, put its dates and times in quotes."
        in caught.value.message
    )
    (mistake,) = check_rules(text, str(file) if named else "").mistakes
    assert mistake["message"] in caught.value.message and (mistake["file"], mistake["line"]) == ("", 0)


def test_bad_inline_rules_are_reported_as_they_are() -> None:
    with pytest.raises(UpgradeError) as caught:
        given_rules({"zebra": 1}, None)

    assert caught.value.message.endswith("optional_names.")


# Rules that apply

STORED: dict[str, Any] = {"rolling_rules": {"global": 1}, "role_order": {"compute": ["network"]}}


def test_rules_of_the_ledger_hold_where_none_are_given() -> None:
    plain, parsed = effective_rules(None, STORED, None)

    assert plain == STORED
    assert parsed.default_cap == Cap(1)


def test_given_rules_take_the_place_of_those_of_the_ledger() -> None:
    assert effective_rules({"rolling_rules": {"fleet": 2}}, STORED, None)[0] == {"rolling_rules": {"fleet": 2}}
    assert effective_rules({}, STORED, {})[0] == {}


def test_further_order_is_added_to_either() -> None:
    more = {"compute": "controller"}

    assert effective_rules(None, STORED, more)[1].order == {"compute": ("network", "controller")}
    assert effective_rules({}, STORED, more)[1].order == {"compute": ("controller",)}


def test_further_order_that_closes_a_cycle_is_refused() -> None:
    with pytest.raises(UpgradeError, match=r"a cycle, .*: compute waits for network waits for compute\."):
        effective_rules(None, STORED, {"network": "compute"})
