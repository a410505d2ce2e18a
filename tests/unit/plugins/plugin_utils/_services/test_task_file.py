# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Task files, split into pieces."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import POST
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.task_file import (
    TaskPiece,
    read_pieces,
    refuse_job_tasks,
)
from hypothesis import given, reject
from hypothesis import strategies as st


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "upgrade_tasks.yml"


def read(file: Path, text: str, step: str | None = None) -> list[TaskPiece]:
    file.write_bytes(dedent(text).encode())
    return read_pieces(file, str(file), step)


def refused(file: Path, text: str, step: str | None = None) -> str:
    """Return the error message, with ``f`` for the file."""
    with pytest.raises(UpgradeError) as caught:
        read(file, text, step)
    assert caught.value.code == "bad_service"
    return caught.value.message.replace(str(file), "f").replace(str(file.parent), "d")


def test_each_task_is_read_with_its_step_tags_and_line(file: Path) -> None:
    pieces = read(
        file,
        """\
        ---
        # Of the whole file.

        # Why it stops:
        # it has to.
        - name: Stop   it   # gently
          command: stop
          tags: [step2, gentle]

        - name: Upgrade it

          command: "upgrade"
          tags: upgrade, once
        # The end.
        """,
    )
    assert pieces == [
        TaskPiece(
            "- name: Stop   it\n  command: stop\n  tags: [step2, gentle]\n",
            {"name": "Stop   it", "command": "stop", "tags": ["step2", "gentle"]},
            f"{file}:6",
            "stop",
            False,
            ("step2", "gentle"),
            (("step2", "gentle"),),
        ),
        TaskPiece(
            '- name: Upgrade it\n  command: "upgrade"\n  tags: upgrade, once\n',
            {"name": "Upgrade it", "command": "upgrade", "tags": "upgrade, once"},
            f"{file}:10",
            "upgrade",
            True,
            ("upgrade", "once"),
            (("upgrade", "once"),),
        ),
    ]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "---\n", "--- \n...\n", "# nothing yet\n", "[]\n", "---\n[]\n", "~\n", "\ufeff"]
)
def test_a_file_may_hold_no_task(file: Path, text: str) -> None:
    assert read(file, text) == []


@pytest.mark.parametrize("width", [1, 2, 4])
def test_an_indented_list_is_put_to_the_left(file: Path, width: int) -> None:
    text = "- name: a\n  shell: |\n    one\n\n    two\n  tags: stop\n"
    pieces = read(file, f"---\n# why\n{indent(text, ' ' * width)}")
    assert [piece.text for piece in pieces] == [text]


@pytest.mark.parametrize("before", ["", "\ufeff", "\ufeff---\r\n"])
def test_files_of_other_systems(file: Path, before: str) -> None:
    file.write_bytes(f"{before}- name: a\r\n  command: b\r\n  tags: stop\r\n- name: c\r\n  tags: start\r\n".encode())
    assert [piece.text for piece in read_pieces(file, "f")] == [
        "- name: a\n  command: b\n  tags: stop\n",
        "- name: c\n  tags: start\n",
    ]


def test_a_file_without_a_line_break_at_its_end(file: Path) -> None:
    assert read(file, "- command: a\n  tags: stop")[0].text == "- command: a\n  tags: stop\n"


def test_a_dash_may_stand_alone(file: Path) -> None:
    pieces = read(
        file, "-\n  name: a\n  tags: stop\n- # why\n  name: b\n  tags: start\n- &x\n  name: c\n  tags: stop\n"
    )
    assert [(piece.text, piece.where) for piece in pieces] == [
        ("- name: a\n  tags: stop\n", f"{file}:2"),
        ("- name: b\n  tags: start\n", f"{file}:5"),
        ("- name: c\n  tags: stop\n", f"{file}:7"),
    ]


def test_a_number_sign_in_a_text_is_no_comment_and_stays(file: Path) -> None:
    first, second = read(
        file,
        """\
        - name: a
          tags: stop
          shell: |
            one
            # of the script
        # of the task below
        - name: b
          tags: start
        """,
    )
    assert first.text.endswith("  shell: |\n    one\n    # of the script\n")
    assert second.text == "- name: b\n  tags: start\n"


@pytest.mark.parametrize("quote", ["'", '"'])
def test_so_it_does_in_quotes(file: Path, quote: str) -> None:
    first, second = read(file, f"- tags: stop\n  shell: {quote}one\n\n    # two{quote}\n- tags: start\n  name: b\n")
    assert first.data["shell"] == "one\n# two"
    assert second.text == "- tags: start\n  name: b\n"


def test_ansibles_own_tags_and_all_letters_are_kept(file: Path) -> None:
    text = (
        "- name: Größe → 日本語 \U0001f680\n  vars:\n    secret: !vault |\n      $ANSIBLE_VAULT;1.1;AES256\n      6230\n"
        "    raw: !unsafe '{{ no }}'\n    some: !unsafe [a]\n    more: !unsafe {a: b}\n  command: 'x y'\n  tags: stop\n"
    )
    (piece,) = read(file, text)
    assert piece.text == text
    assert piece.data["name"] == "Größe → 日本語 \U0001f680"
    assert piece.data["vars"]["secret"] == "$ANSIBLE_VAULT;1.1;AES256\n6230\n"
    assert piece.data["vars"]["more"] == {"a": "b"}


def test_an_anchor_within_a_task_is_kept(file: Path) -> None:
    (piece,) = read(file, "- tags: stop\n  vars: {a: &x [1], b: *x}\n  m:\n    <<: &y {k: 1}\n    z: *y\n")
    assert piece.data["vars"] == {"a": [1], "b": [1]}
    assert piece.text == (
        "- tags: stop\n  vars: {a: &id001 [1], b: *id001}\n  m:\n    <<: &id002 {k: 1}\n    z: *id002\n"
    )


def test_an_anchor_of_another_task_is_written_out(file: Path) -> None:
    first = "- tags: stop\n  vars: &v\n    a: '{{ x }}'\n    b: &w [1, true, ö]\n    c: !vault '1'\n"
    pieces = read(file, first + "- tags: start\n  vars: *v\n- tags: start\n  vars:\n    <<: *v\n    c: *w\n")
    plain = first.replace("&v", "").replace("&w ", "").replace("vars: \n", "vars:\n")
    assert [piece.text for piece in pieces[:2]] == [plain, plain.replace("stop", "start")]
    assert pieces[2].data["vars"] == {"a": "{{ x }}", "b": [1, True, "ö"], "c": [1, True, "ö"]}
    assert pieces[2].text.count("[1, true, ö]") == 1


def test_a_task_that_an_alias_repeats_is_written_twice(file: Path) -> None:
    pieces = read(file, "- &a\n  name: a\n  tags: stop\n- *a\n")
    assert [piece.text for piece in pieces] == ["- name: a\n  tags: stop\n"] * 2


def test_tasks_in_brackets_become_a_list_of_dashes(file: Path) -> None:
    assert [piece.text for piece in read(file, "[{name: a, tags: stop}]\n")] == ["- {name: a, tags: stop}\n"]


def test_blank_lines_at_the_end_of_a_text_do_not_depend_on_the_file(file: Path) -> None:
    pieces = read(file, "- tags: stop\n  shell: |+\n    a\n\n- tags: stop\n  shell: |+\n    b\n")
    assert [piece.text for piece in pieces] == [
        '- tags: stop\n  shell: "a\\n\\n"\n',
        "- tags: stop\n  shell: |\n    b\n",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "- name: a\n  command: b\n",
            "f:1: the task has no step, so it would never run. Tag it with one of step0 (val",
        ),
        (
            "\n\n- name: a\n  tags: upgrad\n",
            "f:3: the task has no step, so it would never run. Its tag 'upgrad' is not a step; did",
        ),
        (
            "- name: a\n  tags: [x, step6]\n",
            "f:1: there is no step 'step6'. Tag it with one of step0 (validate), step1 (",
        ),
        (
            "- name: a\n  tags: stop, start\n",
            "f:1: the task has two steps, stop and start. Keep one of them, or split ",
        ),
        ("- a\n", "f:1: 'a' is not a task. A task is a mapping with a name and a module."),
        ("- {}\n", "f:1: {} is not a task. A task is"),
        ("-\n", "f:1: None is not a task. A task is"),
        ("- - a\n", "f:1: ['a'] is not a task. A task is"),
        ("a: b\n", "f:1: the file has to contain a list of tasks."),
        ("a\n", "f:1: the file has to contain a list of tasks."),
        ("- name: a\n  x: [\n", "f:3: this is not valid YAML: expected the node content, but found '<stream end>'."),
        ("- name: a: b\n", "f:1: this is not valid YAML: mapping values are not allowed here."),
        ("- a: b\n---\n- c: d\n", "f:2: this is not valid YAML: but found another document."),
        (
            "- a: \x07\n",
            "f: this is not valid YAML: unacceptable character #x0007: special characters are not allowed in",
        ),
        ("- a: *b\n", "f:1: this is not valid YAML: found undefined alias 'b'."),
        (
            "- tags: stop\n  command:\n    {{ x }}\n",
            "f:3: this can't be read: found unhashable key. A value that begins with {{ has to be in quotes.",
        ),
        ("- tags: stop\n  vars: {at: 2020-13-45}\n", "f:1: this can't be read: month must be in 1..12."),
        (
            "- tags: stop\n  a: !!python/name:os.system x\n",
            "f:2: this can't be read: could not determine a constructor",
        ),
        ("- &x\n  tags: stop\n  block: [*x]\n", "f:1: this can't be read: found unconstructable recursive node."),
        ("%TAG !x! tag:x,2000:\n---\n- tags: stop\n  a: !x!y b\n", "f:4: this can't be read: could not determine a c"),
        (
            "- tags: stop\n  meta: end_host\n",
            "f:1: meta: end_host would end the host's tasks without a report. Use when, or let the task fail.",
        ),
        (
            "- tags: undrain\n  block: [{tags: never, x: 1}]\n",
            "f:1: a task of the step undrain can't have the tag never, as it puts a host back. Use when.",
        ),
        ("- tags: stop\n  ansible.builtin.meta: end_play\n", "f:1: meta: end_play would end the host's tasks"),
        (
            "- tags: stop\n  command: a\n  run_once: true\n",
            "f:1: run_once does not work, because each host runs its tasks on its own. Tag the task with once: one host runs it for all.",
        ),
        ("- tags: stop\n  command: a\n  run_once: '{{ true }}'\n", "f:1: run_once does not work"),
        ("- tags: stop\n  include_tasks: {file: '{{ x }}', apply: {run_once: 1}}\n", "f:1: run_once does not work"),
        (
            "- tags: stop\n  any_errors_fatal: '{{ x }}'\n  block: [{command: a}]\n",
            "f:1: any_errors_fatal does not work, because each host runs its tasks on its own. failure_rules say how many hosts may fail",
        ),
        (
            "- tags: stop\n  ansible.builtin.pause: {seconds: 5}\n  when: false\n",
            "f:1: pause does not work, because Ansible runs it once for all hosts, and each host runs its tasks on its own. "
            "To wait, use ansible.builtin.wait_for: {timeout: N}.",
        ),
        ("- tags: stop\n  action: ansible.legacy.pause seconds=5\n", "f:1: pause does not work"),
        ("- tags: stop\n  local_action: {module: pause, seconds: 5}\n", "f:1: pause does not work"),
        ("- tags: stop\n  action: meta end_host\n", "f:1: meta: end_host would end"),
        ("- tags: stop\n  add_host: name=x\n", "f:1: add_host does not work"),
    ],
)
def test_what_can_not_be_composed_is_refused(file: Path, text: str, message: str) -> None:
    assert refused(file, text).startswith(message)


def test_bytes_that_are_no_text_are_refused(file: Path) -> None:
    file.write_bytes(b"- name: \xff\n")
    with pytest.raises(UpgradeError, match=r"upgrade_tasks\.yml: the file can't be read: 'utf-8' codec can't decode"):
        read_pieces(file, str(file))


BLOCK = """\
- name: a
  tags: [step3, web]
  block:
    - name: b
      command: b
      tags: [inner]
    - name: c
      block:
        - name: d
          command: d
          {more}
  rescue:
    - name: e
      command: e
"""


def test_the_step_of_a_block_covers_what_is_inside(file: Path) -> None:
    (piece,) = read(file, BLOCK.format(more="tags: step3"))
    assert piece.step == "upgrade"
    assert piece.tags == ("step3", "web", "inner")
    assert piece.leaves == (("step3", "web", "inner"), ("step3", "web"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "tags: step2",
            "f:9: the task has two steps, upgrade from the task around it and stop of its own. Keep one of them.",
        ),
        ("tags: step9", "f:9: there is no step 'step9'. Tag it"),
        (
            "tags: once",
            "f:9: once is allowed only at the top level of a file. Move the tag to the task around this one.",
        ),
        ("meta: end_host", "f:9: meta: end_host would end the host's tasks"),
        ("pause:", "f:9: pause does not work"),
        ("any_errors_fatal: true", "f:9: any_errors_fatal does not work"),
        (
            "throttle: 1",
            "f:9: throttle does not work, because each host runs its tasks on its own. rolling_rules say how",
        ),
        ("run_once: yes", "f:9: run_once does not work, because each host runs its tasks on its own."),
        ("import_tasks: more.yml", "f:9: import_tasks names more.yml, but d/more.yml does not exist."),
    ],
)
def test_in_a_block_the_line_of_the_task_itself_is_named(file: Path, more: str, message: str) -> None:
    assert refused(file, BLOCK.format(more=more)).startswith(message)


@pytest.mark.parametrize("module", ["import_tasks", "include_tasks", "ansible.builtin.import_tasks"])
@pytest.mark.parametrize("given", ["{}", "{{file: {}}}"])
def test_the_step_of_an_include_covers_the_file(file: Path, module: str, given: str) -> None:
    (file.parent / "sub").mkdir()
    (file.parent / "sub/more.yml").write_text("- name: b\n  command: b\n- name: c\n  include_tasks: sub/last.yml\n")
    (file.parent / "sub/last.yml").write_text("# no step\n- name: d\n  command: d\n  tags: deep\n")
    (piece,) = read(file, f"- name: a\n  {module}: {given.format('sub/more.yml')}\n  tags: [step1, x]\n")
    assert (piece.step, piece.tags) == ("prepare", ("step1", "x", "deep"))


def test_a_fault_in_an_included_file_is_reported_with_that_file(file: Path) -> None:
    more = file.parent / "more.yml"
    more.write_text("- name: b\n  block:\n    - name: c\n      tags: verify\n")
    message = refused(file, "- name: a\n  include_tasks: more.yml\n  tags: stop\n")
    assert (
        message
        == "d/more.yml:3: the task has two steps, stop from the task around it and verify of its own. Keep one of them."
    )


def test_tags_of_an_import_are_those_of_its_tasks_and_tags_of_an_include_are_not(file: Path) -> None:
    (file.parent / "more.yml").write_text("- name: b\n  command: b\n  tags: inner\n")
    around = "- tags: [stop]\n  block:\n    - {}_tasks: more.yml\n      tags: [own]\n"
    (imported,) = read(file, around.format("import"))
    assert imported.leaves == (("stop", "own", "inner"),)
    (included,) = read(file, around.format("include"))
    assert included.leaves == (("stop", "own"), ("stop", "inner"))


def test_names_that_are_only_known_later_are_left_to_ansible(file: Path) -> None:
    (piece,) = read(file, '- include_tasks: "{{ ansible_os_family }}.yml"\n  tags: stop\n')
    assert piece.step == "stop"


def test_a_file_that_includes_itself_ends(file: Path) -> None:
    (piece,) = read(file, "- include_tasks: upgrade_tasks.yml\n  when: more\n  tags: stop\n")
    assert piece.tags == ("stop",)


def test_post_upgrade_tasks_have_no_step(file: Path) -> None:
    (piece,) = read(file, "- name: a\n  tags: once\n  command: a\n", POST)
    assert (piece.step, piece.once) == (POST, True)
    message = refused(file, "- name: a\n  tags: step3\n", POST)
    assert message == "f:1: post-upgrade tasks have no step, but this one has the tag upgrade. Remove the tag."
    message = refused(file, "- name: a\n  block:\n    - tags: step3\n", POST)
    assert message.startswith(
        "f:3: the task has two steps, post_upgrade from the task around it and upgrade of its own."
    )


# Values of tasks: texts with line breaks, hashes, dashes, quotes, braces and trailing blanks.
SAMPLES = st.text(alphabet="ab #-:'\"{}[]|>&*!%@\n\\é\u2028", max_size=16) | st.sampled_from(
    ("# no comment\n", "- no: task\n", "a\n\n# b\n\n", "  - x", "\n\n", "---\n")
)
DATA = st.recursive(
    SAMPLES | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
STYLES = st.sampled_from((None, "|", ">", "'", '"'))
COMMENTS = st.sampled_from(("", "# why\n", "\n# why\n# - name: not a task\n", "\n\n"))


@given(st.lists(st.tuples(COMMENTS, DATA, STYLES, st.booleans()), min_size=1, max_size=4), st.integers(0, 4))
def test_the_text_of_a_task_means_what_its_author_wrote(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[tuple[str, Any, Any, bool]], width: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yml"
    text = ""
    for comment, data, style, tags_last in tasks:
        task = {"tags": "stop", "m": data} if not tags_last else {"m": data, "tags": "stop"}
        shown = yaml.safe_dump([task], default_style=style, allow_unicode=True, sort_keys=False)
        text += comment + shown
    file.write_text("---\n" + indent(text, " " * width, lambda line: bool(line.strip())), encoding="utf-8")
    try:
        whole = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        # The generated text is not valid YAML, so the test does not apply.
        reject()
    pieces = read_pieces(file, "f")
    assert [piece.data for piece in pieces] == whole
    again = yaml.safe_load("".join(f"# f\n{piece.text}\n" for piece in reversed(pieces)))
    assert again == whole[::-1]


def test_what_is_off_is_not_refused(file: Path) -> None:
    file.write_text(
        "- tags: stop\n  command: a\n  run_once: 'no'\n  any_errors_fatal: off\n  throttle: 0\n  vars: {pause: 1}\n"
    )
    assert len(read_pieces(file, "f")) == 1


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("pause: {seconds: 5}", "pause does not work"),
        ("meta: end_host", "meta: end_host would end the host's tasks without a report."),
        (
            "{run_once: true, command: a}",
            "run_once does not work, because each host runs its tasks on its own. Give it to a job of one host",
        ),
    ],
)
def test_the_tasks_of_a_job_are_checked_as_those_of_a_service(file: Path, task: str, message: str) -> None:
    file.write_text("- command: a\n- block:\n    - include_tasks: sub/more.yml\n")
    more = file.parent / "sub/more.yml"
    more.parent.mkdir()
    more.write_text(f"- {task}\n")
    with pytest.raises(UpgradeError) as error:
        refuse_job_tasks(file)
    assert error.value.message.startswith(f"{more}:1: {message}")


@pytest.mark.parametrize(
    "text", ["- include_tasks: elsewhere.yml\n- meta: end_role\n", "$ANSIBLE_VAULT;1.1;AES256\n3031\n", "", "- a\n"]
)
def test_what_only_ansible_can_read_of_a_job_is_left_to_it(file: Path, text: str) -> None:
    file.write_text(text)
    refuse_job_tasks(file)
    refuse_job_tasks(file.parent / "none.yml")
