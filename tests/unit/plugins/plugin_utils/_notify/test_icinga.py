# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Downtimes in a real Icinga 2: a host and its services have one while the host is being upgraded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.icinga import Icinga
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.maintenance import Maintenance, read_maintenance
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.silences import MaintenanceError, UnknownHost
from devkit.agent import ROOT
from devkit.child import start, stop
from fleets import NEW, fleet
from missing import missing

from .test_maintenance import read, wait_until

_USER, _PASSWORD = "convoy", "s3cret"
_CONFIG = """\
const NodeName = "monitor"
const ZoneName = "monitor"
include <itl>
object Endpoint NodeName {{}}
object Zone ZoneName {{ endpoints = [ NodeName ] }}
object ApiListener "api" {{ bind_host = "127.0.0.1"; bind_port = {port} }}
object ApiUser "{user}" {{
  password = "{password}"
  permissions = [ "objects/query/Downtime", "actions/schedule-downtime", "actions/remove-downtime" ]
}}
object ApiUser "root" {{ password = "{password}"; permissions = [ "*" ] }}
object Host "compute1.example.com" {{ check_command = "dummy" }}
object Host "compute2.example.com" {{ check_command = "dummy" }}
object Service "ssh" {{ host_name = "compute1.example.com"; check_command = "dummy" }}
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The settings of an Icinga of this test, which it is given with each host's full name."""
    found = subprocess.run([ROOT / "tools/monitoring.sh", "icinga2"], capture_output=True, text=True, check=False)
    if found.returncode:
        missing(f"no Icinga here: {found.stderr}")
    folder = tmp_path_factory.mktemp("icinga")
    for name in ("data/certs", "run", "log", "cache", "spool"):
        (folder / name).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key, certificate = folder / "data/certs/monitor.key", folder / "data/certs/monitor.crt"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=monitor"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, capture_output=True, check=True)
    (folder / "data/certs/ca.crt").write_text(certificate.read_text())
    (folder / "icinga2.conf").write_text(_CONFIG.format(port=port, user=_USER, password=_PASSWORD))
    places = {"DataDir": "data", "InitRunDir": "run", "LogDir": "log", "CacheDir": "cache", "SpoolDir": "spool"}
    options = [f"-D{name}={folder / place}" for name, place in places.items()]
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    group = subprocess.run(["id", "-gn"], capture_output=True, text=True, check=True).stdout.strip()
    command = [found.stdout.strip(), "daemon", "-c", str(folder / "icinga2.conf"), *options]
    environ = {**os.environ, "ICINGA2_USER": user, "ICINGA2_GROUP": group}
    process = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ)
    url = f"https://127.0.0.1:{port}"
    given = {"url": url, "user": _USER, "password": _PASSWORD, "ca_path": str(certificate)}
    try:
        wait_until(lambda: downtimes(given) is not None, 60)
        yield {**given, "host_name": "{host}.example.com", "lasts": "10m"}
    finally:
        stop(process)


def downtimes(settings: Mapping[str, Any]) -> list[tuple[str, str, str]] | None:
    """Return host, service and author of all downtimes, as Icinga itself returns them; None if it does not answer."""
    try:
        url = f"{settings['url']}/v1/objects/downtimes"
        answer = requests.get(url, auth=("root", _PASSWORD), verify=settings["ca_path"], timeout=5)
        found = [one["attrs"] for one in answer.json()["results"]]
    except requests.ConnectionError:
        return None
    return sorted((one["host_name"], one["service_name"], one["author"]) for one in found)


@pytest.fixture
def place(settings: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path) -> Icinga:
    """That Icinga, in which each test has downtimes of its own."""
    (tmp_path / "m.yml").write_text(json.dumps({"icinga": {**settings, "name": request.node.name}}))
    (found,) = read_maintenance(DataLoader(), str(tmp_path / "m.yml"))
    assert isinstance(found, Icinga)
    return found


def test_a_host_and_its_services_have_a_downtime_until_it_is_done(place: Icinga, settings: dict[str, Any]) -> None:
    def ours() -> list[tuple[str, str]]:
        return [(host, service) for host, service, author in downtimes(settings) or () if author == place.author]

    site = fleet(compute=2).opened("compute1", "compute2")
    kept = Maintenance(place)
    kept.update(read(site))
    both = [("compute1.example.com", ""), ("compute1.example.com", "ssh"), ("compute2.example.com", "")]
    wait_until(lambda: ours() == both)
    assert sorted(one.host for one in place.silences()) == ["compute1", "compute2"]
    # Another process finds them, and begins no others.
    other = Maintenance(place)
    other.update(read(site))
    other.close()
    assert ours() == both
    site.upgraded("compute1")
    kept.update(read(site))
    wait_until(lambda: ours() == both[2:])
    site.failed("compute2")
    kept.update(read(site))
    kept.close()
    assert ours() == []
    assert kept.warning == ""


def test_a_downtime_is_renewed_by_another_one_and_ends_by_itself(place: Icinga, settings: dict[str, Any]) -> None:
    place.begin("compute1", NEW, time.time() + 2)
    (first,) = place.silences()
    place.begin("compute1", NEW, time.time() + 600, first)
    assert len(place.silences()) == 2
    wait_until(lambda: len(place.silences()) == 1)
    place.end(first)
    assert place.silences() == []
    assert not [one for one in downtimes(settings) or () if one[2] == place.author]


def test_downtimes_of_other_people_and_fleets_are_left_alone(place: Icinga) -> None:
    other = replace(place, author="ann")
    other.begin("compute1", NEW, time.time() + 600)
    kept = Maintenance(place)
    kept.update(read(fleet(compute=1)))
    kept.close()
    assert [one.host for one in other.silences()] == ["compute1"]
    assert place.silences() == []


def test_a_host_that_icinga_does_not_have_is_reported_and_the_others_have_their_downtime(place: Icinga) -> None:
    kept = Maintenance(place)
    kept.update(read(fleet(compute=3).opened("compute1", "compute3")))
    wait_until(lambda: kept.warning)
    assert "has no host compute3.example.com. It is tried again." in kept.warning
    assert [one.host for one in place.silences()] == ["compute1"]
    kept.close()
    # A name is never a filter.
    with pytest.raises(UnknownHost):
        place.begin('x" || true || "', NEW, time.time() + 600)


def test_a_refusal_is_reported_without_secrets(place: Icinga) -> None:
    wrong = replace(place, address=replace(place.address, login=(_USER, "wr0ng")))
    with pytest.raises(MaintenanceError, match="answered with status 401"):
        wrong.silences()
    assert "wr0ng" not in repr(wrong)
    with pytest.raises(MaintenanceError, match="can't be verified; ca_path names its authority"):
        replace(place, address=replace(place.address, ca_path=None)).silences()
    other = replace(place, address=replace(place.address, url=f"{place.address.url}/elsewhere"))
    with pytest.raises(MaintenanceError, match="answered with status 404"):
        other.silences()
