# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Push services with a real Consul: hosts that are no longer at the start of their upgrade paths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.messages import Admit, AdmitWave, FailHost
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import RunTaskGroup
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.service import PushService
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, seed
from integration.support.processes.push_services import PushServices, admit, admit_apart, end, entry, finish, step

pytestmark = pytest.mark.one_release

FLEET = {"web1": "web", "web2": "web"}
TO_3, TO_4 = (
    RunTaskGroup(f"upgrade/shop@{version}", "upgrade", "shop", once=False, checkpoint=f"shop@{version}")
    for version in "34"
)
OWN = RunTaskGroup("start/shop", "start", "shop", once=False)
TASK_GROUPS = {"web": (TO_3, TO_4, OWN)}
FROM_1 = {"checkpoints": {"web1": [TO_3.checkpoint, TO_4.checkpoint]}, "origins": {"web1": "1"}}
AT_3 = "it is at 3 now, but the upgrade path of this run begins at 1; run the same command again"


@pytest.fixture
def services(store: Store, consul: RawKV) -> Iterator[PushServices]:
    seed(consul, FLEET)
    found = PushServices(store, FLEET)
    yield found
    found.close()


@pytest.fixture
def first(services: PushServices) -> PushService:
    """A run that is upgrading web1 from 1 to 3."""
    service = services.begin(TASK_GROUPS, "3", checkpoints={"web1": [TO_3.checkpoint]}, origins={"web1": "1"})
    admit_apart(service, "web1")
    assert step(service, "web1", TO_3.name)
    finish(service, "web1", TO_3.name)
    return service


def ends(service: PushService) -> None:
    assert step(service, "web1", OWN.name)
    assert end(service, "web1") == "upgraded"


@pytest.mark.parametrize("in_wave", [True, False])
def test_a_host_that_another_run_upgraded_is_not_admitted_to_its_old_path(
    services: PushServices, first: PushService, consul: RawKV, *, in_wave: bool
) -> None:
    second = services.begin(TASK_GROUPS, "4", **FROM_1)
    ends(first)
    record = consul.get("upgrade/hosts/web1")
    answer = second.admit_wave(AdmitWave(("web1",)))["web1"] if in_wave else second.admit(Admit("web1"))
    assert not answer.admitted
    assert answer.reason == AT_3
    assert consul.get("upgrade/hosts/web1") == record
    assert consul.get("upgrade/drivers/web1") is None
    if in_wave:
        # A wave is checked before its gates open.
        assert gates(consul).get("host/web1") != "True"
    # The same command again computes the upgrade path from there.
    again = services.start(TASK_GROUPS, "4", checkpoints={"web1": [TO_4.checkpoint]}, origins={"web1": "3"})
    (admit if in_wave else admit_apart)(again, "web1")
    assert [step(again, "web1", task_group.name) for task_group in TASK_GROUPS["web"]] == [False, True, True]
    assert entry(consul, "upgrade/hosts/web1")["origin"] == "3"


def test_an_interrupted_host_resumes_its_upgrade_path(
    services: PushServices, first: PushService, consul: RawKV
) -> None:
    second = services.begin(TASK_GROUPS, "4", **FROM_1)
    first.fail_host(FailHost("web1", "no disk"))
    admit(second, "web1")
    assert [step(second, "web1", task_group.name) for task_group in TASK_GROUPS["web"]] == [False, True, True]
    assert entry(consul, "upgrade/hosts/web1")["origin"] == "1"
