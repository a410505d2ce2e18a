# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings file: the options of the role and no others, each refused with its name if it has a wrong value."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings as read_connection
from convoy_node.machine.errors import BadSettings
from convoy_node.node.settings import FILE, KINDS, keep_last_good, last_good, read_settings, usable_settings
from devkit.agent import ROOT

ROLE = ROOT / "roles/puppet_gate"
GOOD = {"puppet_gate_host": "compute7"}
# What convoy-node itself gives to an agent run, and what is never a setting of a node.
_NOT_IN_THE_FILE = {"puppet_gate_home", "puppet_gate_release", "puppet_gate_unusable", "puppet_gate_leave"}
_KINDS = {"str": "text", "path": "text", "bool": "flag", "int": "whole", "float": "seconds", "dict": "mapping"}


def options() -> dict[str, dict[str, Any]]:
    specs = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())
    found: dict[str, dict[str, Any]] = specs["argument_specs"]["main"]["options"]
    return found


def write(folder: Path, data: object) -> str:
    file = folder / "node.json"
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(file)


def test_the_settings_are_the_options_of_the_role() -> None:
    found = {
        name: "texts" if one["type"] == "list" and one["elements"] != "dict" else _KINDS.get(one["type"], "items")
        for name, one in options().items()
        if name not in _NOT_IN_THE_FILE
    }
    assert {name: kind for name, kind in KINDS.items() if name.startswith("puppet_gate_")} == found


def test_enrolment_writes_each_of_them() -> None:
    kept = yaml.safe_load((ROLE / "vars/main.yml").read_text())
    names = [
        name for group in ("texts", "flags", "wholes", "numbers", "lists") for name in kept[f"puppet_gate_{group}"]
    ]
    others = {"host", "repositories", "token_file"}
    assert sorted([*names, *others]) == sorted(
        name[len("puppet_gate_") :] for name in KINDS if name.startswith("puppet_gate_")
    )
    groups = {"texts": "text", "flags": "flag", "wholes": "whole", "numbers": "seconds"}
    for group, kind in groups.items():
        assert {KINDS[f"puppet_gate_{name}"] for name in kept[f"puppet_gate_{group}"]} == {kind}


def test_the_settings_for_consul_are_those_of_the_playbooks() -> None:
    variables = yaml.safe_load((ROOT / "playbooks/group_vars/all.yml").read_text())
    assert {f"upgrade_consul_{name}" for name in variables["upgrade_consul"]} == {
        name for name in KINDS if name.startswith("upgrade_consul_")
    }


def test_the_defaults_are_those_of_the_role(tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, GOOD))
    for name in ("default", "bootstrap", "noop", "version_file", "interval", "puppet_pending", "health_ttl"):
        assert getattr(settings, name) == options()[f"puppet_gate_{name}"]["default"]
    assert settings.puppet_interval == settings.puppet_splay == options()["puppet_gate_puppet_interval"]["default"]
    assert (settings.host, settings.role, settings.connection.url) == ("compute7", "compute", "http://127.0.0.1:8500")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**GOOD, "puppet_gate_rle": "x"}, "puppet_gate_rle is not a setting; did you mean puppet_gate_role?"),
        ({**GOOD, "surprise": 1}, "surprise is not a setting. Correct or remove it."),
        ({**GOOD, "puppet_gate_interval": 0}, "puppet_gate_interval is 0; give a whole number above 0"),
        ({**GOOD, "puppet_gate_interval": True}, "puppet_gate_interval is true; give a whole number above 0"),
        ({**GOOD, "puppet_gate_interval": 1.5}, "give a whole number above 0"),
        ({**GOOD, "puppet_gate_health": "yes"}, 'puppet_gate_health is "yes"; give true or false'),
        ({**GOOD, "puppet_gate_packages": "nginx"}, 'give a list of texts, such as ["a", "b"]'),
        ({**GOOD, "puppet_gate_repositories": ["x"]}, "give a list of objects"),
        ({**GOOD, "puppet_gate_puppet_schedule": "cron"}, "give one of agent, external"),
        ({**GOOD, "upgrade_consul_port": 65536}, "upgrade_consul_port is 65536; give a port from 1 to 65535."),
        ({**GOOD, "upgrade_consul_scheme": "ftp"}, "give one of http, https"),
        ({**GOOD, "puppet_gate_agent": {"port": 0}}, 'puppet_gate_agent is {"port": 0}; give host, port and scheme'),
        ({**GOOD, "puppet_gate_agent": {"scheme": "ftp"}}, "of the node's Consul agent, such as"),
        ({**GOOD, "puppet_gate_agent": {"host": 7}}, "give host, port and scheme"),
        (
            {**GOOD, "puppet_gate_agent": {"prot": 8500}},
            'puppet_gate_agent is {"prot": 8500}; give host, port and scheme',
        ),
        (
            {**GOOD, "puppet_gate_environment": "r-{version}"},
            'puppet_gate_environment is "r-{version}"; give the name of an environment',
        ),
        ({**GOOD, "puppet_gate_environment": "main"}, "such as release_{version}."),
        (
            {**GOOD, "puppet_gate_sources": "/srv/sources"},
            'puppet_gate_sources is "/srv/sources"; give consul, or the path of a folder',
        ),
        ({**GOOD, "puppet_gate_sources": "{version}"}, "such as /srv/fleet/{version}/sources."),
        ({"puppet_gate_host": "a/b", "puppet_gate_role": "x"}, "can't be the name of a host"),
        ({**GOOD, "puppet_gate_role": "comp/ute"}, "puppet_gate_role 'comp/ute' can't be the name of a role"),
        ({"puppet_gate_host": "vm"}, "no role can be found in the name vm"),
        ("[" * 100_000, "is nested too deeply"),
        ("", "is empty"),
        ([], "is not an object"),
        ({**GOOD, "x\x1b[31m": 1}, "x?[31m is not a setting"),
    ],
)
def test_what_can_t_be_used_is_refused_with_one_sentence(data: object, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, data)
    with pytest.raises(BadSettings) as refused:
        read_settings(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("environment", ["", "production", "{version}", "release_{version}"])
def test_an_environment_may_have_the_version(environment: str, tmp_path: Path) -> None:
    read_settings(write(tmp_path, {**GOOD, "puppet_gate_environment": environment}))


@pytest.mark.parametrize(("user", "remedy"), [(1000, "Run convoy-node as root."), (0, "Write the ")])
@pytest.mark.parametrize("name", ["node.json", "token"])
def test_another_user_than_root_is_told_to_be_root(
    name: str, user: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {**GOOD, "puppet_gate_token_file": str(tmp_path / "token")})
    real = Path.open

    def opened(file: Path, *given: Any, **named: Any) -> Any:
        if file == tmp_path / name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return real(file, *given, **named)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(BadSettings, match=f"can't be read: Permission denied. {remedy}"):
        read_settings(path)


def test_the_token_is_read_from_its_file_and_never_shown(tmp_path: Path) -> None:
    token = tmp_path / "token"
    path = write(tmp_path, {**GOOD, "puppet_gate_token_file": str(token)})
    with pytest.raises(BadSettings, match=r"the token file .* can't be read: No such file"):
        read_settings(path)
    for bad in ("", "\n", "a b\x07"):
        token.write_text(bad)
        with pytest.raises(BadSettings, match="is empty or has characters"):
            read_settings(path)
    token.write_text("5ec2e7\n")
    settings = read_settings(path)
    assert settings.connection.headers() == {"X-Consul-Token": "5ec2e7"}
    assert "5ec2e7" not in repr(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"upgrade_consul_token": ["5ec2e7"]},
        {"upgrade_consul_token": {"5ec2e7": 1}},
        {"upgrade_consul_token": {"secret": "5ec2e7"}},
        {"upgrade_consul_token": 5277},
        {"puppet_gate_agent": {"port": 8501, "token": "5ec2e7"}},
        {"puppet_gate_token": "5ec2e7"},
    ],
)
def test_a_token_in_a_wrong_form_or_place_is_never_shown(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        read_settings(write(tmp_path, {**GOOD, **settings}))
    shown = f"{caught.value} {caught.value!r}"
    assert "5ec2e7" not in shown
    assert "5277" not in shown
    assert next(iter(settings)) in shown


@pytest.mark.parametrize(("given", "used"), [(2.5, 2.5), (60, 60.0), (600, 60.0)])
def test_a_request_of_the_agent_ends_before_systemd_ends_the_agent(given: float, used: float, tmp_path: Path) -> None:
    settings = read_settings(write(tmp_path, {**GOOD, "upgrade_consul_timeout": given}))
    assert settings.connection.timeout == used
    # Agent runs wait as long as they are set to.
    assert settings.data["upgrade_consul_timeout"] == given


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        ({}, False),
        ({"client_cert": "/c.pem", "client_key": "/k.pem"}, False),
        ({"client_cert": "/c.pem"}, True),
        ({"client_key": "/k.pem"}, True),
        ({"client_cert": "", "client_key": ""}, False),
        ({"pass_limit": 60}, False),
        ({"pass_limit": 0.5}, False),
        ({"pass_limit": 60.5}, True),
        ({"pass_limit": 0}, True),
        ({"timeout": 0}, True),
        ({"timeout": 100}, False),
        ({"port": 65535}, False),
        ({"port": 65536}, True),
        ({"port": 0}, True),
        ({"host": "http://consul1"}, True),
        ({"host": "[::1]"}, False),
        ({"token": "5ec2e7\n"}, False),
        ({"token": "5e c2\x07e7"}, True),
    ],
)
def test_the_agent_refuses_the_settings_for_consul_that_agent_runs_refuse(
    options: dict[str, Any], is_refused: bool, tmp_path: Path
) -> None:
    file = write(tmp_path, {**GOOD, **{f"upgrade_consul_{name}": value for name, value in options.items()}})
    with pytest.raises(UpgradeError) if is_refused else contextlib.nullcontext():
        read_connection(options.get, {})
    with pytest.raises(BadSettings) if is_refused else contextlib.nullcontext():
        read_settings(file)


def test_the_agent_with_the_checks_is_another_one_and_has_the_same_token(tmp_path: Path) -> None:
    there = {**GOOD, "upgrade_consul_host": "consul1", "upgrade_consul_port": 8600, "upgrade_consul_token": "5ec2e7"}
    settings = read_settings(write(tmp_path, there))
    assert (settings.connection.url, settings.consul_agent.url) == ("http://consul1:8600", "http://127.0.0.1:8500")
    assert settings.consul_agent.headers() == {"X-Consul-Token": "5ec2e7"}
    given = {"host": "[::1]", "port": "8501", "scheme": "https"}
    assert read_settings(write(tmp_path, {**GOOD, "puppet_gate_agent": given})).consul_agent.url == "https://[::1]:8501"


def test_the_last_good_settings_are_kept_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convoy_node.node.settings.FOLDER", str(tmp_path / "state"))
    path = write(tmp_path, {**GOOD, "puppet_gate_interval": 60})
    keep_last_good(read_settings(path), path)
    kept = Path(last_good(path))
    assert kept.stat().st_mode & 0o777 == 0o600
    assert read_settings(str(kept)).interval == 60


def test_each_settings_file_has_last_good_settings_of_its_own(tmp_path: Path) -> None:
    # Otherwise a host would be reported under the name of another one, whose settings an operator only checked.
    draft = str(tmp_path / "draft.json")
    assert len({last_good(FILE), last_good(draft), last_good(str(tmp_path / "other.json"))}) == 3
    assert last_good(draft) == last_good(f"{tmp_path}/x/../draft.json")


def test_the_release_is_named_after_the_version_of_the_collection() -> None:
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text())
    assert yaml.safe_load((ROLE / "vars/main.yml").read_text())["puppet_gate_agent_version"] == galaxy["version"]


def test_what_first_settings_give_is_used_without_their_mistakes(tmp_path: Path) -> None:
    named = {**GOOD, "puppet_gate_role": "storage"}
    mistakes = {"puppet_gate_puppet_intervall": 60, "puppet_gate_interval": "often"}
    found = usable_settings(write(tmp_path, {**named, **mistakes}))
    assert (found.host, found.role, dict(found.data)) == ("compute7", "storage", named)
    # Known names leave no doubt about the role, also if it is found in the name of the host.
    assert usable_settings(write(tmp_path, {**GOOD, "puppet_gate_interval": "often"})).role == "compute"


@pytest.mark.parametrize(
    "mistake",
    [
        {"puppet_gate_host": 7},
        {"puppet_gate_host": "web"},
        {"puppet_gate_roles": ["storage"]},
        {"puppet_gate_default": "yes"},
        {"puppet_gate_noop": "maybe"},
        {"upgrade_consul_port": 70000},
        {"upgrade_consul_kv_prefx": 1},
        {"upgrade_consul_client_cert": "/srv/node.pem"},
        {"puppet_gate_agent": {"port": "none"}},
        {"puppet_gate_puppet_intervall": 60},
    ],
)
def test_first_settings_that_do_not_say_who_reports_and_where_are_not_used(mistake: Any, tmp_path: Path) -> None:
    with pytest.raises(BadSettings):
        usable_settings(write(tmp_path, {**GOOD, **mistake}))


@pytest.mark.parametrize(
    "name",
    [
        "puppet_gate_hostname",
        "puppet_gate_hooks",
        "puppet_gate_role_name",
        "puppet_gate_roles",
        "puppet_gate_rle",
        "puppet_gate_no_op",
        "puppet_gate_health_check",
        "upgrade_consul_address",
        "upgrade_kv_prefix",
        "kv_prefix",
        "puppetgate_host",
    ],
)
def test_first_settings_with_a_name_that_may_be_meant_for_who_reports_and_where_are_not_used(
    name: str, tmp_path: Path
) -> None:
    # Otherwise the node could report a failure of another host, whose name its system has.
    with pytest.raises(BadSettings, match=f"{name} is not a setting"):
        usable_settings(write(tmp_path, {**GOOD, "puppet_gate_role": "storage", name: "storage9"}))


def test_first_settings_without_host_or_role_are_not_used_if_a_name_is_unknown(tmp_path: Path) -> None:
    for named in (
        {"puppet_gate_host": "web1"},
        {"puppet_gate_role": "web"},
        {"puppet_gate_host": "", "puppet_gate_role": "web"},
    ):
        with pytest.raises(BadSettings, match="puppet_gate_node is not a setting"):
            usable_settings(write(tmp_path, {**named, "puppet_gate_node": "web2"}))
