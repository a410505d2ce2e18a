# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of a planner service: ``python3 -m ansible_collections.convoy.upgrade.plugins.plugin_utils._planner_service --settings FILE``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback

from ...module_utils._common import runtime
from .log import Log
from .outputs import Outputs
from .planner_service import PlannerService
from .presence import Presence
from .settings import read_service_settings
from .systemd import Systemd

# As sysexits.h has it for a configuration error. The unit does not start the service again then.
_BAD_SETTINGS = 78


def main() -> int:
    """Run the service until it gets a signal to end; return the exit code."""
    parser = argparse.ArgumentParser(
        description="Carries each rollout that was handed over (ansible-playbook convoy.upgrade.upgrade -e wait=false) to its end."
    )
    parser.add_argument("--settings", required=True, metavar="FILE", help="YAML or JSON file with the settings")
    file = parser.parse_args().settings
    systemd = Systemd(os.environ)
    try:
        settings = read_service_settings(file, os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        return _BAD_SETTINGS
    log = Log(systemd, is_json=not sys.stdout.isatty())
    # A pass that is under way can end at any moment, as by kill -9: each of its writes is a transaction.
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    log.say(
        "started",
        f"Planner service {settings.name} of the fleet in Consul at {settings.consul.url} started.",
        planner=settings.name,
    )
    presence, outputs = Presence(settings.consul, settings.name, log), Outputs(settings, log)
    planner = PlannerService(settings, log, systemd, presence)

    def work() -> None:
        try:
            planner.run()
        except BaseException:
            # The service manager starts the service again.
            traceback.print_exc()
            os.kill(os.getpid(), signal.SIGUSR1)

    runtime.start_thread(work)
    systemd.ready()
    received = signal.sigwait(signals)
    systemd.stopping()
    presence.close()
    outputs.close()
    log.say("stopped", "The service stopped.")
    return 1 if received == signal.SIGUSR1 else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads may wait for Consul.
    os._exit(code)
