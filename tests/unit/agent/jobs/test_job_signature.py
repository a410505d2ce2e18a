# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signatures of jobs, made and verified by the real ssh-keygen: what was signed runs, and nothing else does."""

from __future__ import annotations

import errno
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs import job as collection
from convoy_node.jobs import signature
from convoy_node.jobs.job import MOST_SECONDS, NodeJob, check_time, parse_job
from convoy_node.jobs.refusals import Refused
from convoy_node.jobs.signature import NAMESPACE, check_signers, verify_signature
from missing import missing


@pytest.fixture(autouse=True)
def _ssh_keygen() -> None:
    if shutil.which("ssh-keygen") is None:
        missing("ssh-keygen is not installed.")


JOB = NodeJob(
    "restart-1", "restart", 2_000_000_000, {"service": "nova", "grace": 30}, roles=("compute",), hosts=("web1",)
)


def keygen(*words: str, text: bytes = b"") -> bytes:
    return subprocess.run(["ssh-keygen", *words], input=text, capture_output=True, check=True).stdout


@pytest.fixture
def keys(trusted: Path) -> Path:
    """The folder of ann's key, which is allowed, and of bob's, which is not."""
    for name in ("ann", "bob"):
        keygen("-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(trusted / name))
    signers = trusted / "allowed_signers"
    signers.write_text(f"ann@example.com {(trusted / 'ann.pub').read_text()}")
    signers.chmod(0o644)
    return trusted


def signed(job: NodeJob, key: Path, prefix: str = "", namespace: str = NAMESPACE) -> NodeJob:
    signature = keygen("-Y", "sign", "-q", "-f", str(key), "-n", namespace, text=job.signed_text(prefix))
    return replace(job, signature=signature.decode())


def refusal(job: NodeJob, keys: Path, prefix: str = "") -> str:
    with pytest.raises(Refused) as error:
        verify_signature(job, prefix, str(keys / "allowed_signers"))
    return str(error.value)


def test_a_job_signed_with_an_allowed_key_is_accepted(keys: Path) -> None:
    assert verify_signature(signed(JOB, keys / "ann"), "", str(keys / "allowed_signers")) == "ann@example.com"
    prefixed = signed(JOB, keys / "ann", "fleets/a/")
    assert verify_signature(prefixed, "fleets/a/", str(keys / "allowed_signers")) == "ann@example.com"


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "restart-2"},
        {"command": "halt"},
        {"arguments": {"service": "nova", "grace": 31}},
        {"arguments": {"service": "nova"}},
        {"expires": 2_000_000_001},
        {"roles": ()},
        {"roles": ("compute", "controller")},
        {"hosts": ("web1", "web2")},
        {"roles": ("web1",), "hosts": ("compute",)},
    ],
)
def test_a_job_that_was_changed_is_refused(changes: dict[str, Any], keys: Path) -> None:
    message = refusal(replace(signed(JOB, keys / "ann"), **changes), keys)
    assert "The signature by ann@example.com does not fit the job" in message


def test_the_signature_of_another_fleet_or_purpose_is_refused(keys: Path) -> None:
    assert "does not fit the job" in refusal(signed(JOB, keys / "ann", "a/"), keys, "b/")
    assert "does not fit the job" in refusal(signed(JOB, keys / "ann", namespace="file"), keys)


def test_the_order_of_hosts_and_arguments_does_not_matter(keys: Path) -> None:
    job = replace(JOB, hosts=("web2", "web1"))
    turned = replace(signed(job, keys / "ann"), hosts=("web1", "web2"), arguments=dict(reversed(JOB.arguments.items())))
    assert verify_signature(turned, "", str(keys / "allowed_signers")) == "ann@example.com"


def test_other_signers_are_refused(keys: Path) -> None:
    assert "is signed with a key that is not in" in refusal(signed(JOB, keys / "bob"), keys)
    assert "is not signed" in refusal(JOB, keys)
    assert "is signed with a key that is not in" in refusal(replace(JOB, signature="nonsense"), keys)


def test_a_file_of_signers_that_others_can_change_is_refused(keys: Path) -> None:
    job = signed(JOB, keys / "ann")
    (keys / "allowed_signers").chmod(0o664)
    assert "can be written by other users" in refusal(job, keys)
    (keys / "allowed_signers").unlink()
    assert "allowed_signers can't be read: No such file" in refusal(job, keys)


def test_the_check_of_a_node_names_what_keeps_signed_jobs_from_running(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signers = keys / "allowed_signers"
    check_signers(str(signers))
    monkeypatch.setattr("convoy_node.jobs.signature._FOLDERS", str(keys))
    with pytest.raises(Refused, match=f"ssh-keygen does not run .it is not in {keys}"):
        check_signers(str(signers))
    signers.write_text("# ann will send hers\n\n")
    with pytest.raises(Refused, match="has no key, so this node runs no signed job"):
        check_signers(str(signers))
    signers.unlink()
    with pytest.raises(Refused, match="allowed_signers can't be read: No such file"):
        check_signers(str(signers))


def test_a_signer_whose_time_is_over_is_refused(keys: Path) -> None:
    signers = keys / "allowed_signers"
    signers.write_text(f'ann valid-before="20200101" {(keys / "ann.pub").read_text()}')
    assert "is signed with a key that is not in" in refusal(signed(JOB, keys / "ann"), keys)


def test_the_collection_signs_the_same_text() -> None:
    for job in (JOB, replace(JOB, arguments={"text": 'ä"\\\n', "number": 1.5}, roles=(), hosts=("b", "a"))):
        same = collection.Job(
            id=job.id, command=job.command, args=job.arguments, roles=job.roles, hosts=job.hosts, expires=job.expires
        )
        assert same.signed_text("p/") == job.signed_text("p/")
        assert parse_job("key", job.id, collection.encode_job(same).encode()) == job
    assert (collection.NAMESPACE, collection.MOST_SECONDS) == (NAMESPACE, MOST_SECONDS)


def test_a_job_has_its_time() -> None:
    now = time.time()
    check_time(replace(JOB, expires=int(now) + 60), now)
    # The clock of a node may be behind.
    check_time(replace(JOB, expires=int(now) + MOST_SECONDS + 3000), now)
    for expires, message in (
        (int(now) - 1, "The job expired 1 s ago"),
        (int(now) + MOST_SECONDS + 3609, "at most 2678400 s"),
    ):
        with pytest.raises(Refused, match=message):
            check_time(replace(JOB, expires=expires), now)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"x" * 70000,
        b'{"id": "other", "command": "a", "expires": 1}',
        b'{"id": "a", "command": 1, "expires": 1}',
        b'{"id": "a", "command": "a", "expires": "1"}',
        b'{"id": "a", "command": "a", "expires": true}',
        b'{"id": "a", "command": "a", "expires": 1, "args": []}',
        b'{"id": "a", "command": "a", "expires": 1, "args": {"x": NaN}}',
        b'{"id": "a", "command": "a", "expires": 1, "roles": "compute"}',
        b'{"id": "a", "command": "a", "expires": 1, "hosts": [1]}',
        b'{"id": "a", "command": "a", "expires": 1, "signature": 1}',
    ],
)
def test_a_job_that_can_t_be_read_is_refused(value: bytes) -> None:
    with pytest.raises(Refused, match=r"upgrade/jobs/a can't be used"):
        parse_job("upgrade/jobs/a", "a", value)


def test_without_room_for_temporary_files_a_job_is_refused_with_what_to_do(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = signed(JOB, keys / "ann")
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(keys / "missing"))
        message = refusal(job, keys)
    assert message == (
        "The signature can't be verified: no temporary files can be written (No such file or directory). Make room in /tmp of this node, or "
        "create it."
    )
    made: list[str] = []
    make = tempfile.mkdtemp

    def full(_path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "mkdtemp", lambda **facts: made.append(make(dir=keys, **facts)) or made[-1])
        changed.setattr(Path, "write_bytes", full)
        assert "no temporary files can be written (No space left on device)" in refusal(job, keys)
    assert made and not Path(made[0]).exists()
    assert verify_signature(job, "", str(keys / "allowed_signers")) == "ann@example.com"


@pytest.mark.parametrize("is_first", [False, True])
def test_a_key_on_two_lines_is_allowed_by_the_line_for_jobs(is_first: bool, keys: Path) -> None:
    key = (keys / "ann.pub").read_text()
    lines = [f'ann-git namespaces="git" {key}', f'ann-jobs namespaces="{NAMESPACE}" {key}']
    (keys / "allowed_signers").write_text("".join(reversed(lines) if is_first else lines))
    found = verify_signature(signed(JOB, keys / "ann"), "", str(keys / "allowed_signers"))
    assert found == "ann-jobs"
    (keys / "allowed_signers").write_text(lines[0])
    assert "does not fit the job" in refusal(signed(JOB, keys / "ann"), keys)


@pytest.mark.parametrize("mode", [0o775, 0o2775, 0o777])
def test_an_ssh_keygen_that_another_user_could_replace_verifies_nothing(
    mode: int, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signers = str(keys / "allowed_signers")
    folder = keys / "bin"
    folder.mkdir()
    # It says of any signature that it is ann's.
    (folder / "ssh-keygen").write_text("#!/bin/sh\necho ann@example.com\n")
    (folder / "ssh-keygen").chmod(0o755)
    job = signed(JOB, keys / "bob")
    assert refusal(job, keys).startswith("The job is signed with a key that is not in")
    monkeypatch.setattr("convoy_node.jobs.signature._FOLDERS", str(folder))
    folder.chmod(mode)
    for act in (lambda: verify_signature(job, "", signers), lambda: check_signers(signers)):
        with pytest.raises(Refused, match=rf"{folder} can't be trusted: .*can be written by other users"):
            act()
    folder.chmod(0o755)
    (folder / "ssh-keygen").chmod(mode)
    with pytest.raises(Refused, match="can be written by other users"):
        check_signers(signers)


def test_ssh_keygen_is_looked_for_first_where_only_root_can_write() -> None:
    assert signature._FOLDERS.split(":")[-1] == "/usr/local/bin"
