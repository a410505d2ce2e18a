# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sends events of a rollout to chats, mail and webhooks. No error and no output has the URL of a target, which often is a secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

from ...module_utils._common import runtime
from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import listing, rollout_title
from ...module_utils._common.sanitize import sanitize, truncate_middle
from ...module_utils._observe.notifications import APPROVAL_NEEDED, END, EVENTS, FAILURE
from .hook import NotSent
from .settings_file import refuse_unknown

# Seconds to connect to a webhook, and to wait for its answer.
_TIMEOUTS = (5, 10)
# How long an event waits for targets that are slow, so that most failures are known at once (seconds).
_LATE = 3.0
# Further tries after a webhook could not be reached or had a passing problem, each after so many seconds.
_PAUSES = (1.0, 3.0)
_PASSING = frozenset((408, 429, 500, 502, 503, 504))
_KINDS = {FAILURE: "failure", APPROVAL_NEEDED: "warning"}
# What an operator can do about targets that did not get an event.
_CHECK = "Check the service behind {}."
_CORRECT = "Correct {} in the file."
_EITHER = "Check {} in the file, and the service behind it."
# Parts of a URL that are so long may be secrets.
_SECRET = re.compile(r"[^/:@?&=#\s]{6,}")


@dataclass(frozen=True, slots=True)
class Target:
    """A chat, a mailbox or a webhook.

    :param name: what messages call it.
    :param url: a URL of apprise, or of a webhook.
    :param events: the events that it gets.
    :param secret: the key with which events for a webhook are signed; empty for none.
    """

    name: str
    url: str
    events: tuple[str, ...] = EVENTS
    is_webhook: bool = False
    secret: str = ""

    def __repr__(self) -> str:
        """Return it without what may be secret."""
        return f"Target({self.name!r})"


@dataclass(slots=True, eq=False)
class _Delivery:
    """An event on its way to a target.

    :param until: when it is given up, if it has not ended before (seconds, as :func:`runtime.monotonic` has them).
    :param failed: why it was not sent, once it has ended; None if it was sent.
    """

    messenger: Messenger
    target: Target
    event: Mapping[str, Any]
    until: float
    has_ended: bool = False
    failed: NotSent | None = None

    @property
    def queue(self) -> tuple[str, str]:
        """The key of its queue: the file and the name of its target."""
        return self.messenger.file, self.target.name


# Held for all below.
_changed = runtime.condition()
# The file and the name of a target -> the events for it, in order. The first one is being sent. Each queue has one thread, also if the target
# hangs.
_queues: dict[tuple[str, str], deque[_Delivery]] = {}
# What no call has returned yet, in order.
_unreported: list[_Delivery] = []


@dataclass(frozen=True, slots=True)
class Messenger:
    """Sends each event to some targets. It stands in the place of a hook.

    Each target gets its events in order. One that is slow or hangs delays no other target and no later event.

    :param file: the file that names the targets, for messages.
    :param page: URL of the live page, which messages then have; empty for none.
    :param patience: seconds for an event, for each target.
    """

    file: str
    targets: tuple[Target, ...]
    page: str
    patience: float

    def call(self, event: Mapping[str, Any]) -> NotSent | None:
        """Send an event to all targets that want it; return None if no target has failed. What slow targets do, :meth:`late` returns."""
        until = runtime.monotonic() + self.patience
        found = [_Delivery(self, target, event, until) for target in self.targets if event["event"] in target.events]
        with _changed:
            for one in found:
                if one.queue not in _queues:
                    runtime.start_thread(_send_in_order, one.queue)
                _queues.setdefault(one.queue, deque()).append(one)
                _unreported.append(one)
            _changed.wait_for(lambda: all(one.has_ended for one in found), min(_LATE, self.patience))
            return _failure(_take_ended(found))

    def late(self, seconds: float = 0.0) -> list[tuple[Mapping[str, Any], NotSent]]:
        """Return each event that slow targets did not get, and why: once, and also those of earlier messengers with the same file.

        :param seconds: how long to wait until all targets have answered.
        """
        with _changed:
            found = [one for one in _unreported if one.messenger.file == self.file]
            _changed.wait_for(lambda: all(one.has_ended for one in found), seconds)
            by_event = [[*group] for _event, group in groupby(_take_ended(found), lambda one: id(one.event))]
        return [(group[0].event, failed) for group in by_event if (failed := _failure(group)) is not None]

    def _send(self, target: Target, event: Mapping[str, Any], until: float) -> NotSent | None:
        try:
            return _post(target, event, until) if target.is_webhook else self._send_message(target, event)
        except UpgradeError as error:
            return NotSent(error.message, _EITHER)
        except Exception as error:
            # A library's error must not end the notifier.
            return NotSent(f"{type(error).__name__}: {error}", _EITHER)

    def _send_message(self, target: Target, event: Mapping[str, Any]) -> NotSent | None:
        title, body = message(event, self.page)
        kind = (
            "success" if event["event"] == END and event["outcome"] != "aborted" else _KINDS.get(event["event"], "info")
        )
        apprise = _library("apprise", "url")
        with _own_log_lines() as lines:
            sender = apprise.Apprise()
            # The message has texts of hosts. Without the format, they would be HTML in a mail, and mentions in a chat.
            if sender.add(target.url) and sender.notify(body, title, kind, body_format="text"):
                return None
        return NotSent(" ".join(lines) or "it was not accepted", _EITHER)


def _send_in_order(queue: tuple[str, str]) -> None:
    """Send the events of a queue until it is empty."""
    while True:
        with _changed:
            if not _queues[queue]:
                del _queues[queue]
                return
            one = _queues[queue][0]
        failed = one.messenger._send(one.target, one.event, one.until)
        failed = failed and failed._replace(why=_without_secrets(failed.why, one.target))
        with _changed:
            _queues[queue].popleft()
            if not one.has_ended:
                one.has_ended, one.failed = True, failed
            _changed.notify_all()


def _take_ended(found: list[_Delivery]) -> list[_Delivery]:
    """Return those that have ended, or that are given up now. Call it with ``_changed`` held."""
    for one in found:
        if not one.has_ended and runtime.monotonic() >= one.until:
            one.has_ended, one.failed = True, NotSent(f"not sent within {one.messenger.patience:.0f} s", _CHECK)
            if _queues[one.queue][0] is not one:
                one.failed = NotSent("it is still at an earlier event", _CHECK)
                _queues[one.queue].remove(one)
    ended = [one for one in found if one.has_ended]
    _unreported[:] = [one for one in _unreported if one not in ended]
    return ended


def _failure(ended: list[_Delivery]) -> NotSent | None:
    """Return why an event was not sent to some targets; None if it was."""
    failed = [(one.target.name, one.failed) for one in ended if one.failed is not None]
    if not failed:
        return None
    remedies: dict[str, list[str]] = {}
    for name, why in failed:
        remedies.setdefault(why.remedy, []).append(name)
    return NotSent(
        "; ".join(f"{name}: {why.why}" for name, why in failed),
        " ".join(remedy.format(listing(names)) for remedy, names in remedies.items()),
    )


@contextmanager
def _own_log_lines() -> Iterator[list[str]]:
    """Yield the list of what apprise logs in this thread meanwhile. Other threads send to other targets, whose URLs are secret too."""
    lines: list[str] = []
    thread = runtime.current_thread().ident

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                lines.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("apprise")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def message(event: Mapping[str, Any], page: str = "") -> tuple[str, str]:
    """Return the title and the text of a message on an event.

    :param event: the payload of a notification.
    :param page: URL of the live page; empty for none.
    """
    title = f"{rollout_title(event['version'])}: {event['event'].replace('_', ' ')}"
    return title, "\n".join(filter(None, (event["text"], event["next"], page)))


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return what a webhook compares with the header ``X-Convoy-Signature``: HMAC-SHA256 of the timestamp, a dot and the body."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _post(target: Target, event: Mapping[str, Any], until: float) -> NotSent | None:
    body = json.dumps({"text": event["text"], "next": event["next"], "event": event}, ensure_ascii=False).encode()
    requests = _library("requests", "webhook")
    failed: NotSent | None = None
    for pause in (*_PAUSES, None):
        timestamp = str(int(runtime.now()))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "convoy.upgrade",
            "X-Convoy-Event": event["event"],
            "X-Convoy-Timestamp": timestamp,
        }
        if target.secret:
            headers["X-Convoy-Signature"] = signature(target.secret, timestamp, body)
        try:
            # A redirect could lead elsewhere. The body of the answer is not read.
            with requests.post(
                target.url, data=body, headers=headers, timeout=_TIMEOUTS, allow_redirects=False, stream=True
            ) as answer:
                status = answer.status_code
        except requests.Timeout:
            failed = NotSent(f"it did not answer within {_TIMEOUTS[1]} s", _CHECK)
        except requests.ConnectionError:
            failed = NotSent("it can't be reached", _EITHER)
        else:
            if 200 <= status < 300:
                return None
            failed = NotSent(
                f"it answered with status {status}", _CHECK if status in _PASSING or status >= 500 else _CORRECT
            )
            if status not in _PASSING:
                return failed
        if pause is None or runtime.monotonic() + pause > until:
            return failed
        runtime.sleep(pause)
    return failed


def _without_secrets(text: str, target: Target) -> str:
    """Return an error as one line without parts of the target's URL but its host."""
    host = urlsplit(target.url).hostname or ""
    for part in sorted({*_SECRET.findall(target.url), target.secret} - {"", host}, key=len, reverse=True):
        text = text.replace(part, "***")
    return truncate_middle(sanitize(text.rstrip(". ")), 200)


def read_targets(settings: Mapping[str, Any]) -> Iterator[Target]:
    """Yield the targets of a settings file.

    :param settings: the content of the file.
    :raises ValueError: for the first mistake; its text is the end of a sentence.
    :raises UpgradeError: ``missing_library``.
    """
    refuse_unknown(settings, ("targets", "page"))
    _text(settings.get("page", ""), "page")
    found = settings.get("targets")
    if not isinstance(found, list) or not found:
        raise ValueError("it has no list of targets")
    names: set[str] = set()
    for at, one in enumerate(found):
        where = f"targets[{at}]"
        if not isinstance(one, Mapping):
            raise ValueError(f"{where} is not a mapping of names to values")
        refuse_unknown(one, ("name", "url", "webhook", "secret", "events"), f"{where}.")
        given = [key for key in ("url", "webhook") if key in one]
        if len(given) != 1:
            raise ValueError(f"{where} needs either url, which apprise reads, or webhook")
        is_webhook = given == ["webhook"]
        url = _text(one[given[0]], f"{where}.{given[0]}")
        if "secret" in one and not is_webhook:
            raise ValueError(f"{where}.secret is only for a webhook")
        kind = _check_webhook(url, where) if is_webhook else _check_apprise(url, where)
        name = _text(one.get("name") or kind, f"{where}.name")
        while name in names:
            name += "'"
        names.add(name)
        events = one.get("events", list(EVENTS))
        wrong = [event for event in events if event not in EVENTS] if isinstance(events, list) and events else [events]
        if wrong:
            raise ValueError(f"{where}.events: {wrong[0]!r} is not one of {', '.join(EVENTS)}")
        yield Target(name, url, tuple(map(str, events)), is_webhook, _text(one.get("secret", ""), f"{where}.secret"))


def _text(value: object, where: str) -> str:
    # A value with !vault is no str in some releases of Ansible.
    if isinstance(value, (bool, int, float, Mapping, list)) or value is None:
        raise ValueError(f"{where} is not a text")
    return str(value)


def _check_webhook(url: str, where: str) -> str:
    _library("requests", "webhook")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{where}.webhook is not a URL that begins with https:// or http://")
    return parts.hostname


def _check_apprise(url: str, where: str) -> str:
    apprise = _library("apprise", "url")
    # It logs what it can't read, with the URL.
    with apprise.LogCapture(level=logging.CRITICAL):
        service = apprise.Apprise.instantiate(url)
    if service is None:
        raise ValueError(f"{where}.url is not a URL that apprise can read")
    return str(service.service_name or urlsplit(url).scheme)


def _library(name: str, key: str) -> Any:
    """Return a library that only messages need. Loading it takes a while.

    :param key: the key of targets that need it.
    :raises UpgradeError: ``missing_library``.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise UpgradeError(
            "missing_library",
            f"The Python library '{name}' is missing for {sys.executable}, and targets with {key} need it: install it there with "
            f"'pip install {name}'. Nothing was done.",
        ) from error
