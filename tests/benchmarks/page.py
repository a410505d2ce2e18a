# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How soon the live page shows what a host reports: from the write in Consul to the changed text in a real Chromium.

A planner service writes the page of a rollout in its third stage, a web server serves it, and Chromium opens it: measured is the time until its first
paint. Then hosts report failures, one after the other. Measured are the time until the files have changed, and the time until Chromium shows the error of
the host: while nothing else changes, and while other hosts report their steps all the time.
"""

from __future__ import annotations

import functools
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import STARTED
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from benchmarks.options import Options
from benchmarks.tables import Report, median
from devkit.agent import Agent
from integration.support.fleets.scenes import Scene
from integration.support.processes.browser_session import BrowserSession, browser_session
from integration.support.processes.planner_service import Service, until

NAME = "page"
ABOUT = "how soon Chromium paints the live page, and shows what a host has reported, with up to 5,000 hosts"
NEEDS_LAB = False

SIZES = (1_000, 5_000)
ROUNDS = 5
# Hosts of a scene beside those of the role compute.
_OTHERS = 23
# Nothing changes for so long before each report (seconds).
_QUIET = 20.0
# While hosts report all the time, so many reports come in a second, and so long before each measurement (seconds).
_PER_SECOND, _BUSY = 20.0, 5.0
# An update that is not there after this time does not come (seconds).
_LONGEST = 60.0


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_given: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _reporting(store: Store, *, is_busy: bool) -> Iterator[None]:
    """Let the hosts that are being upgraded report one step after the other meanwhile, if the fleet is busy."""
    over = threading.Event()
    hosts = [host for host, record in store.snapshot().records.items() if record.state == STARTED]

    def report() -> None:
        for number, host in enumerate(itertools.cycle(hosts)):
            if over.wait(1 / _PER_SECOND):
                return
            write_report(store, HostReport(host, "2.10", STARTED, service="nova_compute", step=f"step{number}"))

    thread = threading.Thread(target=report, daemon=True)
    if is_busy:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if is_busy:
            thread.join()


@dataclass
class Times:
    """What is measured of a fleet (seconds).

    :param painted: from the begin of a page's loading to its first paint.
    :param written: until the files have what a host reports.
    :param shown: until Chromium has it.
    """

    painted: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)


def first_paint(browser: BrowserSession, url: str) -> float:
    """Open a page; return the time until the browser has painted text of it (seconds)."""
    found = "performance.getEntriesByName('first-contentful-paint')"
    browser.call("Network.clearBrowserCache")
    browser.open(url)
    browser.wait_until(f"{found}.length", _LONGEST)
    return float(browser.run(f"{found}[0].startTime")) / 1000


def measure(hosts: int, rounds: int, *, is_busy: bool = False) -> Times:
    """Return the times of a page.

    :param is_busy: whether other hosts report all the time.
    :raises OSError: if there is no Chromium.
    """
    times = Times()
    with tempfile.TemporaryDirectory() as name, Agent() as agent:
        folder, store = Path(name), Store(Settings(port=agent.http_port))
        page = folder / "page"
        page.mkdir()
        Scene(computes=hosts - _OTHERS).write(agent.kv)
        service = Service(folder, agent.http_port, page=str(page))
        try:
            with (
                served(page) as url,
                browser_session(folder / "browser") as browser,
                _reporting(Store(store.settings), is_busy=is_busy),
            ):
                until((page / "changes.json").exists, _LONGEST)
                browser.set_display(width=1280, dark=False)
                times.painted = [first_paint(browser, f"{url}/index.html") for _time in range(rounds)]
                for number in range(rounds):
                    error = f"no space left on disk {number}"
                    # The service reads a fleet that changes all the time less often. Chromium last looked at another moment each time.
                    time.sleep((_BUSY if is_busy else _QUIET) + number / rounds)
                    write_report(store, HostReport(f"compute{hosts - _OTHERS - number}", "2.10", "failed", error=error))
                    began = time.monotonic()
                    until(lambda error=error: error in (page / "index.html").read_text(), _LONGEST)
                    times.written.append(time.monotonic() - began)
                    browser.wait_until(f"document.querySelector('#failures').innerText.includes('{error}')", _LONGEST)
                    times.shown.append(time.monotonic() - began)
        finally:
            service.kill()
    return times


def run(options: Options, report: Report) -> None:
    """Measure all sizes of fleets."""
    head = ["hosts", "other hosts", "first paint, median (s)", "slowest (s)"]
    head += ["files changed, median (s)", "shown, median (s)", "shown, slowest (s)", "updates"]
    table = report.table("The page in Chromium: its first paint, and from a host's report to its text.", head)
    sizes = options.sizes or (SIZES[:1] if options.quick else SIZES)
    for hosts, is_busy in itertools.product(sizes, (False, True)):
        try:
            times = measure(hosts, options.repeated(ROUNDS), is_busy=is_busy)
        except OSError as error:
            report.say(f"\nPart {NAME} is skipped: there is no Chromium: {error}.")
            return
        others = f"report {_PER_SECOND:.0f} times a second" if is_busy else "quiet"
        table.add(
            f"{hosts:,}",
            others,
            f"{median(times.painted):.2f}",
            f"{max(times.painted):.2f}",
            f"{median(times.written):.2f}",
            f"{median(times.shown):.2f}",
            f"{max(times.shown):.2f}",
            len(times.shown),
        )
