# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin consul_fleet: which hosts are in it, with which groups and variables, and its errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.inventory.consul_fleet import InventoryModule
from devkit.agent import ROOT, Agent
from devkit.kv import RawKV
from integration.support.fleets.catalog import Catalog
from integration.support.fleets.fleet import GATES, names, seed
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.coverage import documentation
from integration.support.runs.inventories import Inventories
from thorough import quick

ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane", "services": []}}
STATES = {f"state_{name}" for name in ("upgraded", "failed", "lost", "upgrading", "held", "pending")}


def test_nodes_and_reports_make_one_inventory(shelf: Inventories, consul: RawKV, catalog: Catalog) -> None:
    seed(consul, names(controller=1, compute=2), "2.8", current="2.10", gates={"global": "False"})
    consul.put("running/versions/2.10/compute2", "1800000000")
    catalog.register("compute1", "10.0.0.7", {"lan": "10.0.0.7", "wan": "192.0.2.7"}, rack="r1")
    catalog.register("compute3", "10.0.0.9")
    catalog.register("consul1")
    limits = "no cap limits role compute: set rolling_rules.roles.compute to a number or unlimited"
    listed = shelf(upgrade_roles=ROLES)
    assert listed.groups == {
        "controller": ["controller1"],
        "compute": ["compute1", "compute2", "compute3"],
        "version_2_8": ["compute1", "controller1"],
        "version_2_10": ["compute2"],
        "state_pending": ["compute1", "compute3", "controller1"],
        "state_upgraded": ["compute2"],
    }
    assert listed.children == {
        "all": sorted({*STATES, "plane_controlplane", "plane_dataplane", "ungrouped", "version_2_10", "version_2_8"}),
        "plane_controlplane": ["controller"],
        "plane_dataplane": ["compute"],
    }
    assert listed.shared == {"upgrade_roles": ROLES}
    compute1 = {key: value for key, value in listed.hosts["compute1"].items() if key != "upgrade_roles"}
    assert compute1 == {
        "ansible_host": "10.0.0.7", "convoy_role": "compute", "convoy_group": None, "convoy_plane": "dataplane",
        "convoy_state": "pending", "convoy_version": "2.8", "convoy_reason": limits, "convoy_gate": "closed",
        "convoy_gate_key": f"{GATES}/global", "convoy_hold": None, "convoy_registered": True, "convoy_datacenter": "dc1",
        "convoy_meta": {"rack": "r1"}, "convoy_health": None,
    }  # fmt: skip
    assert "ansible_host" not in listed.hosts["compute2"]
    assert listed.of("convoy_registered") == {
        "compute1": True,
        "compute2": False,
        "compute3": True,
        "controller1": False,
    }
    assert listed.hosts["compute3"]["convoy_reason"] == f"never reported; {limits}"
    assert "WARNING" not in listed.errors


def test_states_are_those_of_the_rollout(shelf: Inventories, consul: RawKV) -> None:
    hosts = names(compute=5, web=1)
    seed(consul, hosts, "1", current="2", gates={"global": "False", "host/compute2": "True", "role/web": "Flase"})
    consul.put("running/versions/2/compute5", "1800000000")
    consul.put("upgrade/hosts/compute1", '{"version": "2", "state": "failed", "error": "disk full"}')
    consul.put("upgrade/hold/host/compute3", '{"reason": "RAM", "by": "ann"}')
    rules = {"group_mappings": {"hv": "comp"}, "rolling_rules": {"global": 1}}
    consul.put("upgrade/ledger", json.dumps({"epoch": 1, "version": "2", "instructions": rules}))
    listed = shelf()
    states = ["failed", "upgrading", "held", "pending", "upgraded", "pending"]
    assert listed.of("convoy_state") == dict(zip(hosts, states, strict=True))
    assert listed.groups["state_failed"] == ["compute1"]
    assert listed.hosts["compute1"]["convoy_reason"] == "failed: disk full"
    assert listed.hosts["compute2"]["convoy_gate_key"] == f"{GATES}/host/compute2"
    gates = ["closed", "open", "closed", "closed", "closed", "unreadable"]
    assert listed.of("convoy_gate") == dict(zip(hosts, gates, strict=True))
    assert (
        listed.hosts["compute3"]["convoy_hold"]
        == "held by ann: RAM (ends with ansible-playbook convoy.upgrade.unhold -e host=compute3)"
    )
    assert "rolling_rules.global admits 1 of group hv at once" in listed.hosts["compute4"]["convoy_reason"]
    assert listed.of("convoy_group") == {**dict.fromkeys(hosts, "hv"), "web1": None}
    assert listed.of("convoy_plane") == dict.fromkeys(hosts)
    assert listed.shared == {}


@pytest.mark.one_release
def test_the_role_comes_from_the_file_the_metadata_or_the_name(
    shelf: Inventories, consul: RawKV, catalog: Catalog
) -> None:
    seed(consul, ["dc1-db"])
    catalog.register("compute1", role="network", kind="ceph")
    catalog.register("gw", kind="network")
    catalog.register("x-compute")
    first = shelf(roles={"compute1": "mine", "later": "compute"}, role_meta="kind", role_pattern="-([a-z]+)$")
    roles = {"compute1": "mine", "gw": "network", "x-compute": "compute", "dc1-db": "db", "later": "compute"}
    assert first.of("convoy_role") == roles
    assert first.groups["compute"] == ["later", "x-compute"]
    consul.put("upgrade/ledger", json.dumps({"epoch": 1, "version": "2", "role_pattern": "-([a-z]+)$"}))
    assert shelf(role_meta="").of("convoy_role") == {"x-compute": "compute", "dc1-db": "db"}
    by_default = shelf().of("convoy_role")
    assert by_default == {"compute1": "network", "x-compute": "compute", "dc1-db": "db"}


@pytest.mark.thorough
@pytest.mark.one_release
def test_nodes_that_are_not_of_the_fleet_are_left_out_grouped_or_refused(
    shelf: Inventories, agent: Agent, catalog: Catalog
) -> None:
    catalog.register("compute1")
    catalog.register("consul1", "10.0.0.3", rack="r1")
    catalog.register("gw", role="computer")
    server = f"throwaway-{agent.http_port}"
    ignoring = shelf("-v", upgrade_roles=ROLES)
    assert list(ignoring.hosts) == ["compute1"]
    assert "The role 'computer' is not in upgrade_roles; did you mean 'compute'?" in ignoring.errors
    printed = shelf.run("ansible-inventory", "-i", shelf.write(upgrade_roles=ROLES), "--graph", "-v")[0]
    assert f"left out, as they are not part of the fleet: consul1, gw, {server}" in printed
    assert set(shelf().hosts) == {"compute1", "consul1", "gw"}
    grouping = shelf(upgrade_roles=ROLES, unplaced="group")
    assert grouping.groups == {
        "compute": ["compute1"], "state_pending": ["compute1"], "unplaced": ["consul1", "gw", server],
    }  # fmt: skip
    assert grouping.hosts["consul1"]["convoy_state"] is None
    assert grouping.hosts["consul1"]["ansible_host"] == "10.0.0.3"
    assert grouping.hosts["consul1"]["convoy_meta"] == {"rack": "r1"}
    refusal = shelf.refusal(upgrade_roles=ROLES, unplaced="fail")
    assert (
        f"consul_fleet: [unplaced_hosts] No role for consul1, gw, {server}: the node is in Consul's catalog, and neither"
        in refusal
    )


@pytest.mark.thorough
@pytest.mark.one_release
def test_a_host_that_reported_without_a_role_is_not_passed_over(shelf: Inventories, consul: RawKV) -> None:
    seed(consul, ["enigma", "compute1"])
    assert "consul_fleet: [unplaced_hosts] No role for enigma: the host reported to Consul" in shelf.refusal()
    listed = shelf(unplaced="group")
    assert "enigma" in listed.groups["unplaced"]
    assert listed.groups["version_1"] == ["compute1", "enigma"]
    assert shelf(roles={"enigma": "db"}).of("convoy_role") == {"compute1": "compute", "enigma": "db"}


@pytest.mark.thorough
@pytest.mark.one_release
def test_the_address_is_the_one_asked_for(shelf: Inventories, catalog: Catalog) -> None:
    catalog.register("compute1", "10.0.0.1", {"lan": "10.0.0.2", "wan": "192.0.2.1"})
    catalog.register("compute2", "10.0.0.3")
    for address, expected in (
        ("lan", ["10.0.0.2", "10.0.0.3"]), ("wan", ["192.0.2.1", "10.0.0.3"]), ("name", [None, None]),
    ):  # fmt: skip
        assert list(shelf(address=address).of("ansible_host").values()) == expected


@pytest.mark.thorough
@pytest.mark.one_release
def test_consuls_own_view_of_its_agents_is_reported(shelf: Inventories, agent: Agent, catalog: Catalog) -> None:
    catalog.register("compute1")
    server = f"throwaway-{agent.http_port}"
    listed = shelf(roles={server: "consul"})
    assert listed.of("convoy_health") == {"compute1": None, server: "passing"}
    assert listed.hosts[server]["ansible_host"] == "127.0.0.1"


@pytest.mark.thorough
@pytest.mark.one_release
def test_prefixes_of_groups(shelf: Inventories, consul: RawKV) -> None:
    seed(consul, ["compute1"], "2.8-rc.1")
    prefixes = {"version_prefix": "runs-", "state_prefix": "is_", "plane_prefix": "in_"}
    assert shelf(upgrade_roles=ROLES, **prefixes).groups == {
        "compute": ["compute1"], "runs_2_8_rc_1": ["compute1"], "is_upgraded": ["compute1"],
    }  # fmt: skip
    bare = shelf(upgrade_roles=ROLES, **dict.fromkeys(prefixes, ""))
    assert bare.groups == {"compute": ["compute1"]}
    assert bare.children == {"all": ["compute", "controller", "ungrouped"]}


@pytest.mark.thorough
def test_a_role_keeps_its_name_as_the_name_of_its_group(shelf: Inventories, consul: RawKV) -> None:
    seed(consul, ["ceph1"])
    given = {"roles": {"ceph1": "ceph-osd"}, "upgrade_roles": {"ceph-osd": {"plane": "dataplane"}}}
    assert shelf(**given).groups["ceph-osd"] == ["ceph1"]
    refusal = shelf.refusal(environ={"ANSIBLE_TRANSFORM_INVALID_GROUP_CHARS": "always"}, **given)
    assert "upgrade_roles.ceph-osd: Ansible is set to call the group 'ceph_osd' (force_valid_group_names)" in refusal


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        ({"web": "web"}, "'web' is the name of a host and of a group"),
        ({"web": "all"}, "No role can be called 'all', because Ansible has a group of that name."),
        ({"state_held": "web"}, "'state_held' is the name of a host and of a group"),
    ],
)
def test_names_that_ansible_would_mix_up(shelf: Inventories, roles: dict[str, str], sentence: str) -> None:
    assert sentence in shelf.refusal(roles=roles)
    # Not a part of it either, where Ansible goes on.
    assert shelf(roles=roles).hosts == {}


@pytest.mark.thorough
def test_variables_and_groups_can_be_made_from_the_facts(shelf: Inventories, consul: RawKV, catalog: Catalog) -> None:
    seed(consul, ["compute1"], "1", current="2")
    catalog.register("compute1", rack="r1")
    catalog.register("compute2")
    made = {
        "compose": {"ansible_user": "'u-' ~ convoy_role", "me": "inventory_hostname", "more": "extra"},
        "groups": {"silent": "convoy_version is none"},
        "keyed_groups": [{"key": "convoy_meta.rack"}, {"key": "me", "prefix": "host"}],
        "leading_separator": False,
        "use_extra_vars": True,
    }
    listed = shelf("-e", "extra=yes", **made)
    assert listed.of("ansible_user") == dict.fromkeys(["compute1", "compute2"], "u-compute")
    assert listed.of("me") == {"compute1": "compute1", "compute2": "compute2"}
    assert set(listed.of("more").values()) == {"yes"}
    groups = {name: listed.groups[name] for name in ("silent", "r1", "host_compute1")}
    assert groups == {"silent": ["compute2"], "r1": ["compute1"], "host_compute1": ["compute1"]}
    refusal = shelf.refusal(strict=True, **made)
    assert "Could not" in refusal
    assert "extra" in refusal


def test_nothing_from_consul_is_evaluated(shelf: Inventories, consul: RawKV, catalog: Catalog) -> None:
    evil = "{{ lookup('pipe', 'touch evil') }}"
    seed(consul, ["compute1"], "1", current="2", gates={"global": "False"})
    consul.put("upgrade/hosts/compute1", json.dumps({"version": "2", "state": "failed", "error": evil}))
    # Ansible takes other delimiters from such a text. Releases before 2.19 need no line break after them.
    header = "#jinja2:variable_start_string:'[[',variable_end_string:']]',also:'[[ 1+1 ]]'"
    catalog.register("compute1", tagged={"lan": "{% raw %}"}, note=evil, role=evil, header=header)
    catalog.register(f"compute2{evil}".replace(" ", ""))
    path = shelf.write(compose={"copied": "convoy_reason"}, unplaced="group")
    shown = "{{ [convoy_meta, convoy_reason, copied, inventory_hostname, group_names, ansible_host] }}"
    stdout, errors, code = shelf.run("ansible", "-i", path, "compute*", "-m", "debug", "-a", f"msg={shown}")
    assert code == 0, errors
    assert stdout.count("lookup('pipe'") + stdout.count("lookup(\\'pipe\\'") >= 3, stdout
    # It is no address, so it is only in the warning.
    assert "{% raw %}" not in stdout
    assert "{% raw %}" in errors
    assert "[[ 1+1 ]]" in stdout
    assert not (shelf.folder / "evil").exists()


def test_a_consul_that_cannot_be_reached_is_an_error_and_no_empty_fleet(shelf: Inventories) -> None:
    sentence = "consul_fleet: [unreachable] Consul at http://127.0.0.1:1 can't be reached: Connection refused. Check that its agent is running"
    refusal = shelf.refusal(host="127.0.0.1", port=1, timeout=0.2)
    assert sentence in refusal
    assert "HTTPConnectionPool" not in refusal
    lenient = shelf(host="127.0.0.1", port=1, timeout=0.2)
    assert sentence in lenient.errors
    assert lenient.hosts == {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "sentence"),
    quick(
        2,
        [
            ({"upgrade_role": {}}, "upgrade_role: there is no such option; did you mean 'upgrade_roles'?"),
            ({"upgrade_roles": {"compute": {"plane": "data"}}}, "upgrade_roles.compute.plane: 'data' is not a plane"),
            (
                {"upgrade_roles": {"compute": {"plne": 1}}},
                "upgrade_roles.compute.plne: unknown key; did you mean 'plane'?",
            ),
            ({"roles": {"gw": "computer"}, "upgrade_roles": ROLES}, "roles.gw: 'computer' is not in upgrade_roles"),
            ({"role_pattern": "("}, "role_pattern: '(' is not a valid regular expression"),
            ({"unplaced": "drop"}, "unplaced"),
            ({"address": "ipv6"}, "address"),
            ({"roles": ["compute1"]}, "roles"),
            ({"port": "http"}, "port"),
            (
                {"token": "s3cret", "host": "{{ nobody }}"},
                "host: its template can't be evaluated: 'nobody' is undefined",
            ),
            (
                {"token": ["s3cret"]},
                "token: it is no text but a list or a mapping, and not shown here. Put it in quotes.",
            ),
            ({"datacenter": "dc9", "timeout": 0.2}, "No path to datacenter"),
            (
                {"kv_prefix": "x", "ca_path": "/no/such.pem", "scheme": "https"},
                "ca_path: /no/such.pem is not a file that can be read",
            ),
        ],
    ),
)
def test_options_that_cannot_be_right(shelf: Inventories, options: dict[str, Any], sentence: str) -> None:
    refusal = shelf.refusal("-vvv", **options)
    assert sentence in refusal
    assert "s3cret" not in refusal


@pytest.mark.thorough
@pytest.mark.one_release
def test_what_consul_holds_may_be_wrong_too(shelf: Inventories, consul: RawKV, catalog: Catalog) -> None:
    catalog.register("compute1", role="a/b")
    listed = shelf()
    assert list(listed.hosts) == ["compute1"]
    assert "the key 'role' of the metadata of node 'compute1': the role 'a/b' has a '/'" in listed.errors
    consul.put("upgrade/ledger", json.dumps({"epoch": 1, "version": "2", "instructions": {"rolling": 1}}))
    listed = shelf(role_meta="")
    assert list(listed.hosts) == ["compute1"]
    assert (
        "The rules in upgrade/ledger can't be applied, so no host is admitted: instructions: rolling" in listed.errors
    )
    consul.put("upgrade/ledger", "{")
    assert "The ledger upgrade/ledger can't be read" in shelf.refusal(role_meta="")


@pytest.mark.one_release
@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("consul_fleet.yml", True), ("consul_fleet.yaml", True), ("east.consul_fleet.yml", True), ("a.b.consul_fleet.yaml", True),
        ("my_consul_fleet.yml", False), ("consul_fleet.json", False), ("hosts.yml", False), ("consul_fleet.yml.orig", False),
    ],
)  # fmt: skip
def test_files_are_known_by_their_names(tmp_path: Path, name: str, fits: bool) -> None:
    assert not InventoryModule().verify_file(str(tmp_path / name))
    (tmp_path / name).touch()
    assert InventoryModule().verify_file(str(tmp_path / name)) is fits


@pytest.mark.thorough
def test_the_playbooks_need_no_other_inventory(
    shelf: Inventories, agent: Agent, consul: RawKV, catalog: Catalog
) -> None:
    seed(consul, names(controller=1, compute=2), "1", prefix="clouds/east/", gates={"global": "False"})
    catalog.register("compute9")
    catalog.register("consul1")
    before = consul.tree()
    connection = {
        "host": "127.0.0.1",
        "port": agent.http_port,
        "kv_prefix": "clouds/east",
        "scheme": "http",
        "timeout": 5,
    }
    path = shelf.write(upgrade_roles=ROLES, **connection)
    python = ("-e", json.dumps({"ansible_python_interpreter": sys.executable}))
    # What stands in the file is for the playbooks too, so this does no harm.
    unreachable = {"CONSUL_HTTP_ADDR": "127.0.0.1:1"}
    shared = shelf.read(path, environ=unreachable).shared
    assert shared == {"upgrade_roles": ROLES, **{f"upgrade_consul_{name}": value for name, value in connection.items()}}
    playbooks = ROOT / "playbooks"
    stdout, errors, code = shelf.run(
        "ansible-playbook", "-i", path, playbooks / "status.yml", *python, environ=unreachable
    )
    assert code == 0, stdout + errors
    rows = [line.split() for line in stdout.splitlines()]
    assert ["fleet", "4", "3", "-", "1", "-", "-", "-", "1", "(3),", "never", "reported", "(1)"] in rows, stdout
    given = json.dumps({"version": "2", "instructions": UNLIMITED})
    stdout, errors, code = shelf.run(
        "ansible-playbook", "-i", path, playbooks / "upgrade.yml", "--check", "-e", given, *python, environ=unreachable
    )
    assert code == 0, stdout + errors
    assert "now 1 controller1" in " ".join(stdout.split())
    assert "2 3 compute1, compute2, compute9" in " ".join(stdout.split())
    assert consul.tree() == before
    stdout, errors, code = shelf.run(
        "ansible", "-i", path, "compute", "-c", "local", "-m", "ping", *python, environ=unreachable
    )
    assert code == 0, stdout + errors
    assert stdout.count('"pong"') == 3


@pytest.mark.thorough
def test_variables_on_the_command_line_say_how_consul_is_reached(
    shelf: Inventories, agent: Agent, consul: RawKV
) -> None:
    seed(consul, ["compute1"], prefix="east/")
    given = {
        "upgrade_consul_port": agent.http_port,
        "upgrade_consul_kv_prefix": "east",
        "upgrade_consul_datacenter": "dc1",
    }
    listed = shelf("-e", json.dumps(given), environ={"CONSUL_HTTP_ADDR": "127.0.0.1:1"})
    assert list(listed.hosts) == ["compute1"]


@pytest.mark.thorough
def test_examples_are_whole_files_that_work(shelf: Inventories, agent: Agent, consul: RawKV, catalog: Catalog) -> None:
    seed(consul, ["controller1", "compute7"])
    catalog.register("gateway.example.com")
    examples = list(yaml.safe_load_all(documentation("consul_fleet", "inventory")["examples"]))
    groups = [
        {"compute", "controller"},
        {"compute", "controller", "network"},
        {"away", "to_do", "compute", "rack_unknown"},
    ]
    here = {
        "host": "127.0.0.1",
        "port": agent.http_port,
        "scheme": "http",
        "ca_path": None,
        "token": None,
        "cache_connection": "cache",
    }
    for example, expected in zip(examples, groups, strict=True):
        options = {name: here.get(name, value) for name, value in example.items()}
        if "role_pattern" in options:
            # Of these examples, it is for hosts called otherwise, and the agent's own node is in the way.
            options |= {"role_pattern": "^([a-z]+)[0-9]", "unplaced": "ignore"}
        listed = shelf(**options)
        assert listed.code == 0
        assert expected - set(listed.groups) in (set(), {"to_do"}), listed
