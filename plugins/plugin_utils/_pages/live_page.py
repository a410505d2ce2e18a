# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The live page of a fleet: an HTML page, pages for its hosts, and the same as JSON, all as files for any web server.

All pages are complete without their script, which only loads them again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import is_job, job_id, rollout_title
from ...module_utils._fleet.ledger import BEGINNINGS
from ...module_utils._queries.follow import ProgressUpdate
from ...module_utils._queries.job_details import JobDetails
from ...module_utils._queries.rollout_history import MOST_ROLLOUTS, RolloutHistory, summary
from ...module_utils._queries.rollout_report import read_rollout_report
from ...module_utils._rollout_report.host import DONE, WAITS
from ...module_utils._rollout_report.rollout import rollout_report
from ...module_utils._state.store import Store
from .charts import axis, bands, curve, legend, phases_over_time, timeline
from .host_details import HostDetails, Part, events_by_host, host_details, parts_of
from .host_map import host_map, map_legend
from .live_state import bars_of, command, live_state, only_time_differs
from .page_folder import HOSTS, INDEX, PageFolder
from .page_templates import own_text, render, rules_table
from .report_page import html_page

DATA = "state.json"
# A page without changes is written again after this time, so that its readers see that someone still writes it (seconds). The script knows
# a longer time.
_ALIVE = 60.0
# The charts and the report take time in proportion to hosts and history, so they are made again at most after this share of the time.
_CHARTS_SHARE = 20
_CHARTS_PAUSE = 2.0
# The report is only for who opens it.
_REPORT_SHARE = 50
_REPORT_PAUSE = 30.0
# Pages of hosts that changed are written again for at most this time at once, and the rest with the next calls (seconds of processor): while
# others wait for the state of the rollout, and while nothing changes.
_HOST_DETAILS_TIME = 0.05
_HOST_DETAILS_TIME_IN_QUIET = 0.3
# So many of them are written at once however long it takes, which are all of a small fleet.
_LEAST_AT_ONCE = 8
# How many hosts have a bar in the timeline.
_MOST_BARS = 40


class LivePage:
    """Keeps the page of a fleet up to date.

    :param store: where the history is read.
    :param folder: where the page is written; the folder exists.
    :param dry: write nothing.
    """

    def __init__(self, store: Store, folder: str, *, dry: bool = False) -> None:
        """Check the folder, and keep the store.

        :raises UpgradeError: ``bad_folder``.
        """
        self._folder = PageFolder(folder, dry=dry)
        self._store = store
        self._history = RolloutHistory(store)
        self._job_details = JobDetails(store)
        self._read: ProgressUpdate | None = None
        self._state: dict[str, Any] = {}
        try:
            self._before = self._state_before()
        except UpgradeError:
            # Its lock would keep the next page of this process out.
            self._folder.close()
            raise
        self._roles: dict[str, str] = {}
        self._parts: list[Part] = []
        self._links: dict[str, str] = {}
        self._host_details: dict[str, HostDetails] = {}
        self._written: dict[str, tuple[HostDetails, ...]] = {}
        self._is_behind = False
        # The part that comes first with the next call, because the time of the last one was over before it.
        self._next_part = 0
        self._charts, self._charts_due = Markup(), 0.0
        self._report, self._report_due = "", 0.0
        # The version and the begin of the last rollout that had a report.
        self._reported = ("", 0)
        self._at = 0.0
        # That of a page without any read.
        self._error = ""
        self.warning = ""

    def __enter__(self) -> LivePage:
        """Return it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say on the page that it is no longer updated, and let others write it."""
        self.close()

    @property
    def path(self) -> str:
        """The path of the page."""
        return str(self._folder.path / INDEX)

    @property
    def texts(self) -> Mapping[str, str]:
        """File -> its text, as it was written, or would be."""
        return self._folder.texts

    @property
    def has_changed(self) -> bool:
        """Whether the page says something else than before the first read, apart from times."""
        return not only_time_differs(self._state, self._before)

    def update(self, read: ProgressUpdate | UpgradeError | None) -> None:
        """Write what has changed. An error becomes ``warning``, and the next call tries again: a page must not end what it is about.

        :param read: what was read; the error if it can't be read, which the page then has; None if nothing has changed.
        """
        try:
            self._update(read)
            self.warning = ""
        except UpgradeError as error:
            self.warning = f"The page is not up to date: {error.message}"
        except Exception as error:
            self.warning = f"The page is not up to date, because of a fault in convoy.upgrade: {error!r}."

    def close(self) -> None:
        """Say on the page that it is no longer updated, and let others write it."""
        try:
            if self._read is not None:
                self._write_host_details(self._read, most_seconds=None, ended=True)
                self._write(self._read, ended=True)
            elif self._error:
                self._write_error(self._error, ended=True)
        except UpgradeError as error:
            self.warning = f"The page is not up to date: {error.message}"
        finally:
            self._folder.close()

    def _state_before(self) -> dict[str, Any]:
        try:
            found = json.loads(self._folder.read(DATA) or "{}")
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _update(self, read: ProgressUpdate | UpgradeError | None) -> None:
        if isinstance(read, ProgressUpdate):
            has_events = self._history.refresh(read.view.snapshot.ledger)
            if has_events:
                self._charts_due = min(self._charts_due, runtime.monotonic() + _CHARTS_PAUSE)
            warnings = self._read_job_details(read)
            self._read, self._state = read, live_state(read, self._history, self._job_details)
            self._state["warnings"] += warnings
            # If a file can't be written, the next call tries again.
            self._at = -math.inf
            self._write_host_details(read, most_seconds=_HOST_DETAILS_TIME)
            self._write(read)
        elif self._read is not None:
            error = read.message if read is not None else self._state["error"]
            if self._is_behind or self._folder.is_lost(f"{HOSTS}/index.json"):
                # As above, also if only the last of these files can't be written.
                at, self._at = self._at, -math.inf
                self._write_host_details(self._read, most_seconds=_HOST_DETAILS_TIME_IN_QUIET)
                self._folder.publish(int(runtime.now()), error, ended=False)
                self._at = at
            if error != self._state["error"] or runtime.monotonic() - self._at >= _ALIVE:
                self._state["error"] = error
                if not error:
                    self._state["at"] = int(runtime.now())
                # As above.
                self._at = -math.inf
                self._write(self._read)
        elif read is not None and (read.message != self._error or runtime.monotonic() - self._at >= _ALIVE):
            self._write_error(read.message)

    def _write_error(self, error: str, *, ended: bool = False) -> None:
        """Write a page that has only an error, as nothing has been read yet."""
        written = int(runtime.now())
        style = own_text("style.css", "live.css")
        self._folder.write(INDEX, render("live_error.html.j2", error=error, written=written, ended=ended, style=style))
        self._folder.publish(written, error, ended=ended)
        self._error, self._at = error, runtime.monotonic()

    def _read_job_details(self, read: ProgressUpdate) -> list[str]:
        """Read what is new of a job; return warnings for the page, which needs no more than the rest."""
        try:
            self._job_details.refresh(read.view.snapshot)
        except UpgradeError as error:
            if error.code != "denied":
                raise
            return [f"The outputs of the job are not shown: {error.message}"]
        return []

    def _write(self, read: ProgressUpdate, *, ended: bool = False) -> None:
        self._charts_now(read, is_last=ended)
        rollout = self._state["rollout"]
        of_job = is_job(rollout["version"])
        needs = [
            {
                **need,
                "command": command(need["playbook"], need["variables"]),
                "other_command": command(need["otherwise"], {}) if need["otherwise"] else "",
            }
            for need in rollout["needs_operator"]
        ]
        current = summary(self._history.current)
        rollouts = [one.plain() for one in ([current] if current is not None else []) + self._history.former]
        written = int(runtime.now())
        text = render(
            "live.html.j2",
            state=self._state,
            rollout={**rollout, "needs_operator": needs},
            title=rollout_title(rollout["version"]) if rollout["state"] else "No rollout has begun",
            rollouts=[{**one, "is_job": is_job(one["version"]), "report": self._report_of(one)} for one in rollouts],
            report=self._report,
            bars=bars_of(rollout),
            states=map_legend(of_job=of_job, has_outside=any(view.outside for view in read.hosts.values())),
            fleet=host_map(self._parts, read.hosts, of_job=of_job),
            charts=self._charts,
            rules=rules_table(rollout["instructions"]),
            links=self._links,
            now=self._state["at"],
            written=written,
            ended=ended,
            style=own_text("style.css", "live.css"),
            script=own_text("live.js"),
        )
        self._folder.write(DATA, _json(self._state))
        self._folder.write(INDEX, text)
        self._folder.publish(written, self._state["error"], ended=ended)
        self._at = runtime.monotonic()

    def _report_of(self, one: Mapping[str, Any]) -> str:
        name = report_name(one["version"], one["begun"])
        return name if name == self._report or self._folder.has(name) else ""

    def _charts_now(self, read: ProgressUpdate, *, is_last: bool) -> None:
        """Make the charts and the report again if it is time."""
        now = runtime.monotonic()
        events = self._history.current
        if not events or events[0]["what"] not in BEGINNINGS:
            self._charts, self._report = Markup(), ""
            return
        name = report_name(str(events[0]["version"]), int(events[0]["at"]))
        if now < self._charts_due and self._report == name and not is_last:
            return
        snapshot = read.view.snapshot
        # Hosts that a job is not for have no part in it.
        members = {host: view.role for host, view in read.view.plan.hosts.items() if not view.outside}
        until = int(snapshot.now)
        report = rollout_report(events, members, snapshot.records, snapshot.reports, until, is_current=True)
        shown = self._charted(report)
        self._charts = Markup(
            render(
                "live_charts.html.j2",
                legend=legend(report),
                axis=axis(report),
                bands=bands(report),
                areas=phases_over_time(report),
                curves=[curve(report, part) for part in report["concurrency"]],
                timeline=timeline(report, shown),
                drawn=len(shown),
                total=len(report["hosts"]),
                until=report["end"],
                report=name,
            )
        )
        if now >= self._report_due or self._report != name or is_last:
            self._folder.write(name, html_page(report))
            if self._report != name:
                self._write_last_report(name, read)
                self._folder.keep_reports(MOST_ROLLOUTS + 1)
            self._report, self._reported = name, (str(report["version"]), int(report["begun"]))
            self._report_due = now + max(_REPORT_PAUSE, (runtime.monotonic() - now) * _REPORT_SHARE)
        self._charts_due = runtime.monotonic() + max(_CHARTS_PAUSE, (runtime.monotonic() - now) * _CHARTS_SHARE)

    def _write_last_report(self, name: str, read: ProgressUpdate) -> None:
        """Write the report of the rollout before once more, as it has ended or was left since it was written last.

        :param name: the report of the rollout of now.
        """
        version, begun = self._reported
        last = report_name(version, begun)
        if not version or last == name:
            return
        fleet = {host: view.role for host, view in read.view.plan.hosts.items()}
        try:
            report = read_rollout_report(self._store, version, fleet)
        except UpgradeError as error:
            if error.code != "no_rollout":
                raise
            return
        if report["begun"] == begun:
            self._folder.write(last, html_page(report))

    @staticmethod
    def _charted(report: Mapping[str, Any]) -> set[str]:
        """Return the hosts with a bar: all of a small fleet, else those on their way, then those that were admitted last."""
        hosts: Sequence[Mapping[str, Any]] = report["hosts"]
        if len(hosts) <= _MOST_BARS:
            return {one["host"] for one in hosts}
        begun = [one for one in hosts if one["phase"] != WAITS]
        begun.sort(key=lambda one: (one["phase"] == DONE, -max(one["admitted"] or [one["began"] or 0])))
        return {one["host"] for one in begun[:_MOST_BARS]}

    def _write_host_details(self, read: ProgressUpdate, most_seconds: float | None, *, ended: bool = False) -> None:
        """Write the pages of hosts that have changed, or all of them if they are the last ones: browsers load these no more."""
        plan, snapshot = read.view.plan, read.view.snapshot
        target = snapshot.current_version or ""
        roles = {host: view.role for host, view in read.hosts.items()}
        # Until all of it is written, the next call writes what is left, also if this one fails.
        self._is_behind = True
        if roles != self._roles or self._folder.is_lost(f"{HOSTS}/index.json"):
            self._parts = parts_of(roles)
            self._written, self._next_part = {}, 0
            self._links = {
                host: f"{HOSTS}/{part.name}.html#h-{quote(host, safe='')}"
                for part in self._parts
                for host in part.hosts
            }
            index = {host: part.name for part in self._parts for host in part.hosts}
            self._folder.write(f"{HOSTS}/index.json", _json(index))
            self._folder.keep_only(part.name for part in self._parts)
            self._roles = roles
        stages = [one.name for one in plan.stages.stages]
        events = events_by_host(self._history.current, roles)
        self._host_details = host_details(snapshot, read.hosts, stages, events, self._job_details.outputs)
        began, written = runtime.processor_seconds(), 0
        # In a fleet where all parts change all the time, they are written one after the other.
        first = self._next_part
        for at in (*range(first, len(self._parts)), *range(first)):
            part = self._parts[at]
            found = tuple(self._host_details[host] for host in part.hosts)
            before = self._written.get(part.name)
            if before == found and not ended and not self._folder.is_lost(f"{HOSTS}/{part.name}.html"):
                continue
            is_due = before is None or most_seconds is None or written < _LEAST_AT_ONCE
            if not is_due and runtime.processor_seconds() - began > (most_seconds or 0.0):
                self._next_part = at
                return
            written += 1
            self._folder.write(f"{HOSTS}/{part.name}.json", _json({one.host: one.plain() for one in found}))
            self._folder.write(
                f"{HOSTS}/{part.name}.html",
                render(
                    "hosts.html.j2",
                    title=part.title,
                    part=part,
                    job=job_id(target) if is_job(target) else "",
                    hosts=found,
                    links={},
                    now=snapshot.now,
                    ended=ended,
                    command=lambda playbook, host: command(playbook, {"host": host}),
                    style=own_text("style.css", "live.css"),
                    script=own_text("live.js"),
                ),
            )
            self._written[part.name] = found
        self._is_behind = False


def report_name(version: str, begun: int) -> str:
    """Return the name of the report's file for a rollout."""
    return f"rollout-{re.sub(r'[^A-Za-z0-9._-]', '_', version)}-{begun}.html"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n"
