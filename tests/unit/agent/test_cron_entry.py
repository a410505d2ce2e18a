# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What cron runs on a node without systemd, and where its output goes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jinja2
import pytest
from devkit.agent import ROOT

TEMPLATE = ROOT / "roles/puppet_gate/templates/convoy-node.cron.j2"
LOG = "/var/log/convoy-node.log"


def entry(home: str, interval: int) -> str:
    """The only line of the entry apart from its comment, as Ansible's module ``template`` writes it."""
    values = {
        "ansible_managed": "test",
        "puppet_gate_home": home,
        "puppet_gate_settings_dir": "/etc/convoy",
        "puppet_gate_interval": interval,
        "puppet_gate_delay": 60,
    }
    comment, line, *more = jinja2.Template(TEMPLATE.read_text(), trim_blocks=True).render(values).splitlines()
    assert (comment, more) == ("# test", [])
    return line


@pytest.mark.parametrize("interval", [1, 59, 60, 119, 300, 420, 900, 1500, 2700, 3540, 3599, 3600, 5400, 86_400])
def test_cron_starts_the_agent_at_even_times_and_not_less_often_than_the_interval_or_once_an_hour(
    interval: int,
) -> None:
    minutes, *others = entry("/opt/convoy", interval).split()[:5]
    assert others == ["*"] * 4
    step = int(minutes.removeprefix("*/")) if minutes.startswith("*/") else 60
    assert minutes in ("0", f"*/{step}")
    assert 60 % step == 0
    assert step * 60 <= max(60, interval)
    # No longer step would do.
    assert not [one for one in range(step + 1, 61) if 60 % one == 0 and one * 60 <= interval]


@pytest.mark.parametrize("has_logger", [True, False])
def test_the_output_goes_to_the_system_s_log_or_is_appended_to_a_file_that_does_not_grow_without_end(
    has_logger: bool, tmp_path: Path
) -> None:
    line = entry(str(tmp_path), 300)
    assert line.startswith("*/5 * * * * root ")
    # To cron it would be the end of the command.
    assert "%" not in line
    command = line.partition(" root ")[2]
    assert LOG in command
    log = tmp_path / "log"
    folder = tmp_path / "bin"
    program = tmp_path / "current/bin/convoy-node"
    for one in (folder, program.parent):
        one.mkdir(parents=True)
    for name in ("sh", "cat", "find", "mv"):
        (folder / name).symlink_to(str(shutil.which(name)))
    program.write_text('#!/bin/sh\necho "$@"\necho an error >&2\n')
    logger = folder / "logger"
    if has_logger:
        logger.write_text('#!/bin/sh\necho "logger $*"\ncat\n')
    for script in (program, *([logger] if has_logger else [])):
        script.chmod(0o755)
    shown = "--settings /etc/convoy/node.json once --delay 60\nan error\n"
    for turn in (1, 2):
        done = subprocess.run(
            ["/bin/sh", "-c", command.replace(LOG, str(log))],
            env={"PATH": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == (f"logger -t convoy-node\n{shown}" if has_logger else "")
        # A run that is under way keeps what it has written.
        assert not has_logger or not log.exists()
        assert has_logger or log.read_text() == shown * turn
        assert done.stderr == ""
    if not has_logger:
        full = "x" * ((1 << 20) + 1)
        for _turn in (1, 2):
            log.write_text(full)
            subprocess.run(["/bin/sh", "-c", command.replace(LOG, str(log))], env={"PATH": str(folder)}, check=True)
            assert log.read_text() == shown
            assert (tmp_path / "log.1").read_text() == full
