# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages to chats, mail and webhooks, to servers of this test that check what arrives."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email import message_from_string
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.notifications import EVENTS
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify import messenger
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.messenger import (
    Messenger,
    Target,
    message,
    read_targets,
)

SECRET = "s3cret-of-the-webhook"
EVENT = {
    "event": "failure",
    "version": "2.10",
    "outcome": "",
    "text": "The rollout to 2.10: 1 host failed or lost: compute7 no space left.",
    "next": "Look at compute7 with ansible-playbook convoy.upgrade.status -e host=HOST, fix what is broken, and run ansible-playbook convoy.upgrade.retry.",
}


class Server:
    """A web server that keeps what it gets, and answers as it is set."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.wait = 0.0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.requests.append((self.path, dict(self.headers), body))
                time.sleep(server.wait)
                self.send_response(server.statuses.pop(0) if server.statuses else 200)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            do_PUT = do_POST

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_given: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.host = f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messenger, "_PAUSES", (0.01, 0.02))


def sender(*targets: dict[str, Any], patience: float = 20, page: str = "") -> Messenger:
    return Messenger(f"notify-{time.monotonic_ns()}.yml", tuple(read_targets({"targets": [*targets]})), page, patience)


def why(one: Messenger) -> str:
    failed = one.call(EVENT)
    assert failed is not None
    return failed.why


def test_a_webhook_gets_the_event_with_a_signature_that_it_can_check(server: Server) -> None:
    assert sender({"webhook": f"http://{server.host}/hook", "secret": SECRET}).call(EVENT) is None

    ((path, headers, body),) = server.requests
    assert (path, headers["X-Convoy-Event"], headers["Content-Type"]) == ("/hook", "failure", "application/json")
    assert json.loads(body) == {"text": EVENT["text"], "next": EVENT["next"], "event": EVENT}
    signed = f"{headers['X-Convoy-Timestamp']}.".encode() + body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-Convoy-Signature"] == f"sha256={digest}"
    assert abs(int(headers["X-Convoy-Timestamp"]) - time.time()) < 10


def test_a_target_gets_only_its_events(server: Server) -> None:
    one = sender({"webhook": f"http://{server.host}/all"}, {"webhook": f"http://{server.host}/end", "events": ["end"]})
    one.call(EVENT)
    one.call({**EVENT, "event": "end", "outcome": "complete"})
    assert sorted(path for path, _headers, _body in server.requests) == ["/all", "/all", "/end"]
    assert "X-Convoy-Signature" not in server.requests[0][1]


def test_a_passing_problem_is_tried_again_and_a_refusal_is_not(server: Server) -> None:
    one = sender({"webhook": f"http://{server.host}/hook"})
    server.statuses = [503, 429, 200]
    assert one.call(EVENT) is None
    server.statuses = [500, 500, 500]
    assert one.call(EVENT) == ("127.0.0.1: it answered with status 500", "Check the service behind 127.0.0.1.")
    server.requests.clear()
    server.statuses = [403]
    assert one.call(EVENT) == ("127.0.0.1: it answered with status 403", "Correct 127.0.0.1 in the file.")
    # A redirect is not followed.
    server.statuses = [302]
    assert why(one) == "127.0.0.1: it answered with status 302"
    assert len(server.requests) == 2


def test_one_that_hangs_or_is_away_does_not_keep_the_others_from_getting_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "_TIMEOUTS", (0.3, 0.3))
    hanging = Server()
    hanging.wait = 2
    try:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            away = closed.getsockname()[1]
            targets = [
                {"name": "hangs", "webhook": f"http://{hanging.host}/hook"},
                {"name": "away", "webhook": f"http://127.0.0.1:{away}/hook"},
                {"name": "there", "webhook": f"http://{server.host}/hook"},
            ]
            begun = time.monotonic()
            assert sender(*targets).call(EVENT) == (
                "hangs: it did not answer within 0.3 s; away: it can't be reached",
                "Check the service behind hangs. Check away in the file, and the service behind it.",
            )
        assert len(server.requests) == 1
        # In all, an event takes no longer than it may.
        monkeypatch.setattr(messenger, "_TIMEOUTS", (5, 5))
        begun = time.monotonic()
        assert why(sender(*targets[:1], patience=0.3)) == "hangs: not sent within 0 s"
        assert time.monotonic() - begun < 1.5
    finally:
        hanging.close()


def test_targets_that_hang_starve_no_other_and_get_no_second_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "_TIMEOUTS", (5, 5))
    hanging = Server()
    hanging.wait = 2.5
    try:
        one = Messenger(
            "hanging.yml",
            tuple(
                read_targets(
                    {
                        "targets": [
                            {"name": "a", "webhook": f"http://{hanging.host}/a"},
                            {"name": "b", "webhook": f"http://{hanging.host}/b"},
                            {"name": "there", "webhook": f"http://{server.host}/hook"},
                        ]
                    }
                )
            ),
            "",
            1,
        )
        assert why(one) == "a: not sent within 1 s; b: not sent within 1 s"
        assert len(server.requests) == 1
        late = "it is still at an earlier event"
        assert why(one) == f"a: {late}; b: {late}"
        assert (len(server.requests), len(hanging.requests)) == (2, 2)
    finally:
        hanging.close()


def test_a_target_that_is_only_late_gets_the_next_event_after_the_earlier_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "_TIMEOUTS", (5, 5))
    server.wait = 2.0
    hook = {"name": "late", "webhook": f"http://{server.host}/hook"}
    one = Messenger("late.yml", tuple(read_targets({"targets": [hook]})), "", 1)
    assert why(one) == "late: not sent within 1 s"
    server.wait = 0
    assert replace(one, patience=5).call(EVENT) is None
    assert len(server.requests) == 2


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What lets the requests of hanging targets go on."""
    found, post = threading.Event(), messenger._post

    def hangs(target: Target, *given: Any) -> Any:
        if "hangs" in target.url:
            found.wait()
        return post(target, *given)

    monkeypatch.setattr(messenger, "_post", hangs)
    yield found
    found.set()


def texts(server: Server, path: str) -> list[str]:
    """Return the texts that a target got, in order."""
    return [json.loads(body)["text"] for where, _headers, body in server.requests if where == path]


def test_a_target_that_hangs_keeps_no_event_from_the_others_and_gets_all_in_order(
    server: Server, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "_LATE", 0.1)
    paths = ("hangs", "there")
    one = sender(*({"name": path, "webhook": f"http://{server.host}/{path}"} for path in paths), patience=60)
    sent = [f"event {number}" for number in range(4)]
    for text in sent:
        # The one that hangs has not failed yet.
        assert one.call({**EVENT, "text": text}) is None
    assert one.late() == []
    end = time.monotonic() + 20
    while texts(server, "/there") != sent:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert texts(server, "/hangs") == []

    released.set()
    assert one.late(60) == []
    assert texts(server, "/hangs") == sent


def test_what_a_slow_target_did_not_get_is_returned_once_with_its_event(
    server: Server, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "_LATE", 0.1)
    one = sender({"name": "pager", "webhook": f"http://{server.host}/hangs"}, patience=60)
    server.statuses = [403, 200, 404]
    events = [{**EVENT, "text": text} for text in ("first", "second", "third")]
    assert [one.call(event) for event in events] == [None] * 3
    released.set()
    # At the end of a run, this waits for all.
    correct = "Correct pager in the file."
    assert one.late(60) == [
        (events[0], ("pager: it answered with status 403", correct)),
        (events[2], ("pager: it answered with status 404", correct)),
    ]
    assert one.late() == []


def test_at_the_end_of_a_run_a_target_that_hangs_is_given_up(
    server: Server, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messenger, "_LATE", 0.1)
    one = sender({"name": "pager", "webhook": f"http://{server.host}/hangs"}, patience=1)
    events = [{**EVENT, "text": text} for text in ("first", "second")]
    assert [one.call(event) for event in events] == [None, None]
    check = "Check the service behind pager."
    assert one.late(one.patience) == [
        (events[0], ("pager: not sent within 1 s", check)),
        (events[1], ("pager: it is still at an earlier event", check)),
    ]
    assert not released.is_set()


def test_a_chat_gets_a_message_with_what_to_do_and_the_page(server: Server) -> None:
    page = "https://convoy.example.com/"
    assert sender({"url": f"json://{server.host}/path"}, page=page).call(EVENT) is None
    ((_path, _headers, body),) = server.requests
    found = json.loads(body)
    assert found["title"] == "Rollout to 2.10: failure"
    assert found["message"].splitlines() == [EVENT["text"], EVENT["next"], page]
    assert found["type"] == "failure"

    for event, outcome, kind in (
        ("approval_needed", "", "warning"), ("end", "complete", "success"), ("end", "aborted", "info"), ("begin", "", "info"),
    ):  # fmt: skip
        sender({"url": f"json://{server.host}/path"}).call({**EVENT, "event": event, "outcome": outcome})
        assert json.loads(server.requests[-1][2])["type"] == kind


@pytest.mark.parametrize(
    ("target", "event", "title"),
    [
        ("2.10", "approval_needed", "Rollout to 2.10: approval needed"),
        ("job/restart-1", "begin", "Job restart-1: begin"),
    ],
)
def test_the_title_names_the_version_or_the_job(target: str, event: str, title: str) -> None:
    assert message({**EVENT, "event": event, "version": target})[0] == title


def test_matrix_gets_a_message(server: Server) -> None:
    hook = f"matrix://0123456789abcdef0123456789abcdef@{server.host}/?mode=hookshot&path=/webhook"
    assert sender({"url": hook}).call(EVENT) is None
    ((_path, _headers, body),) = server.requests
    assert "compute7 no space left" in body.decode()


@pytest.fixture
def teams(tmp_path: Path) -> Iterator[Server]:
    """A server with TLS, without which no message for Microsoft Teams is sent."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=teams"]
    subprocess.run(
        [*made, "-keyout", tmp_path / "key", "-out", tmp_path / "certificate"], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    found = Server(context)
    yield found
    found.close()


def test_teams_gets_a_card_with_what_to_do_and_text_of_a_host_mentions_no_one(teams: Server) -> None:
    hook = f"workflows://{teams.host}/0123456789abcdef/s1gnatureOfTheFlow/"
    sends = sender({"url": f"{hook}?verify=no"}, page="https://convoy.example.com/")
    assert sends.call(EVENT) is None
    ((path, headers, body),) = teams.requests
    assert path.startswith("/workflows/0123456789abcdef/triggers/manual/paths/invoke?")
    assert "sig=s1gnatureOfTheFlow" in path
    assert headers["Content-Type"] == "application/json"
    (attachment,) = json.loads(body)["attachments"]
    card = attachment["content"]
    assert (attachment["contentType"], card["type"]) == ("application/vnd.microsoft.card.adaptive", "AdaptiveCard")
    texts = {one["id"]: one["text"] for one in card["body"] if one["type"] == "TextBlock"}
    assert texts["title"] == "Rollout to 2.10: failure"
    # A text block is Markdown, in which a backslash shows the sign behind it.
    shown = re.sub(r"\\(\W)", r"\1", texts["body"])
    for expected in (EVENT["text"], EVENT["next"], "https://convoy.example.com/"):
        assert expected in shown

    assert sends.call({**EVENT, "text": f"{HOSTILE} <at>ann@example.com</at>"}) is None
    card = json.loads(teams.requests[-1][2])["attachments"][0]["content"]
    assert card["msteams"] == {"width": "full"}
    (text,) = (one["text"] for one in card["body"] if one.get("id") == "body")
    assert "evil" in text
    assert "ann@example" in text
    assert not re.search(r"<at>|\]\(|<img [^>]*[^\\]>", text)

    # A certificate that nothing vouches for is refused, and no error has the secret of the URL.
    error = why(sender({"url": hook}))
    assert error
    assert "s1gnature" not in error
    assert len(teams.requests) == 2


HOSTILE = '<img src="https://evil.example/?x"> <!channel> <@U0123> [click](https://evil.example) & more'


def mailed(event: dict[str, Any], **options: str) -> Any:
    """Return the mail on an event."""
    lines: list[str] = []

    class Mailbox(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 test ESMTP\r\n")
            is_data = False
            for raw in self.rfile:
                line = raw.decode().rstrip("\r\n")
                if is_data:
                    is_data = line != "."
                    if is_data:
                        lines.append(line)
                        continue
                    self.wfile.write(b"250 OK\r\n")
                    continue
                verb = line.split(" ")[0].upper()
                is_data = verb == "DATA"
                self.wfile.write(b"354 go on\r\n" if is_data else b"221 bye\r\n" if verb == "QUIT" else b"250 OK\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as mailbox:
        mailbox.daemon_threads = True
        threading.Thread(target=mailbox.serve_forever, daemon=True).start()
        port = mailbox.server_address[1]
        given = {
            "from": "convoy@example.com",
            "to": "ops@example.com",
            "smtp": "127.0.0.1",
            "mode": "insecure",
            **options,
        }
        url = f"mailto://127.0.0.1:{port}/?{'&'.join(f'{name}={value}' for name, value in given.items())}"
        assert sender({"url": url}).call(event) is None
        mailbox.shutdown()
    return message_from_string("\n".join(lines))


def parts(mail: Any, kind: str) -> str:
    return "".join(
        part.get_payload(decode=True).decode() for part in mail.walk() if part.get_content_type() == f"text/{kind}"
    )


def test_a_mail_arrives() -> None:
    mail = mailed(EVENT, format="text")
    assert mail["Subject"] == "Rollout to 2.10: failure"
    assert "compute7 no space left" in parts(mail, "plain")


def test_text_of_a_host_is_no_markup_in_a_mail() -> None:
    # The URL has no format, which is HTML for apprise unless a message says what it is.
    mail = mailed({**EVENT, "text": HOSTILE})
    assert "evil.example" in parts(mail, "plain")
    assert not re.search(r"<(img|a)\b", parts(mail, "html"))


def test_text_of_a_host_mentions_no_one_in_a_chat(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slack = pytest.importorskip("apprise.plugins.slack")
    monkeypatch.setattr(slack.NotifySlack, "webhook_url", f"http://{server.host}")
    for blocks in ("no", "yes"):
        url = f"slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/%23ops?blocks={blocks}"
        # Slack would answer with a text, this server does not.
        sender({"url": url}).call({**EVENT, "text": HOSTILE})
        body = server.requests[-1][2].decode()
        assert "&lt;!channel&gt;" in body
        assert not re.search(r"<[!@h]", body)


def test_no_error_has_the_secrets_of_a_url(server: Server) -> None:
    server.statuses = [401, 401, 401, 401]
    token = "T0KENofTHEhook1234"
    for target in (
        {"url": f"json://ann:passw0rd99@{server.host}/{token}"},
        {"webhook": f"http://{server.host}/{token}?key=abcdefgh", "secret": SECRET},
    ):
        one = sender(target)
        error = why(one)
        assert error
        for text in (error, repr(one), repr(one.targets)):
            assert not any(secret in text for secret in (token, "passw0rd99", "abcdefgh", SECRET)), text


def test_a_failure_of_a_library_is_an_error_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: Any) -> str:
        raise RuntimeError("it broke at /T0KENofTHEhook1234")

    one = sender({"webhook": "http://127.0.0.1/T0KENofTHEhook1234"})
    monkeypatch.setattr(messenger, "_post", fails)
    assert why(one) == "127.0.0.1: RuntimeError: it broke at /***"


GOOD: dict[str, Any] = {"webhook": "https://chat.example.com/hook"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "it has no list of targets"),
        ({"targets": []}, "it has no list of targets"),
        ({"targets": [GOOD], "pages": ""}, "unknown key pages; did you mean 'page'? Known are targets, page"),
        ({"targets": ["slack://x"]}, "targets[0] is not a mapping of names to values"),
        ({"targets": [GOOD, {}]}, "targets[1] needs either url, which apprise reads, or webhook"),
        ({"targets": [{**GOOD, "url": "slack://x"}]}, "targets[0] needs either url, which apprise reads, or webhook"),
        (
            {"targets": [{**GOOD, "event": "end"}]},
            "unknown key targets[0].event; did you mean 'events'? Known are name",
        ),
        ({"targets": [{**GOOD, "events": ["failed"]}]}, "targets[0].events: 'failed' is not one of begin, stage"),
        ({"targets": [{**GOOD, "events": "end"}]}, "targets[0].events: 'end' is not one of begin, stage"),
        ({"targets": [{**GOOD, "events": []}]}, "targets[0].events: [] is not one of begin, stage"),
        (
            {"targets": [{"webhook": "chat.example.com/hook"}]},
            "targets[0].webhook is not a URL that begins with https://",
        ),
        ({"targets": [{"webhook": 7}]}, "targets[0].webhook is not a text"),
        ({"targets": [{"url": "nonsense"}]}, "targets[0].url is not a URL that apprise can read"),
        ({"targets": [{"url": "json://127.0.0.1/", "secret": "x"}]}, "targets[0].secret is only for a webhook"),
        ({"targets": [{**GOOD, "secret": ["x"]}]}, "targets[0].secret is not a text"),
        ({"targets": [GOOD], "page": 7}, "page is not a text"),
    ],
)
def test_a_mistake_in_the_settings_is_named(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as found:
        [*read_targets(settings)]
    assert str(found.value).startswith(why)


def test_names_of_targets_differ_and_all_events_are_the_default() -> None:
    one, other, named = read_targets({"targets": [GOOD, GOOD, {**GOOD, "name": "ops", "events": ["end"]}]})
    assert [one.name, other.name, named.name] == ["chat.example.com", "chat.example.com'", "ops"]
    assert (one.events, named.events) == (EVENTS, ("end",))


def test_a_missing_library_is_named_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(UpgradeError) as found:
        [*read_targets({"targets": [{"url": "slack://x"}]})]
    assert found.value.code == "missing_library"
    assert "pip install apprise" in found.value.message


def test_a_message_has_no_empty_lines() -> None:
    text_of: Callable[..., Any] = message
    assert text_of({**EVENT, "event": "approval_needed", "next": ""}) == (
        "Rollout to 2.10: approval needed",
        EVENT["text"],
    )
