# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that fails, or whose run is killed, stays out of its services in Consul until it is upgraded."""

from __future__ import annotations

import json

import pytest
from devkit.agent import Agent

from .site import Site, kill, wait_for


@pytest.mark.thorough
def test_a_host_stays_out_of_discovery_after_a_failure_and_a_kill_until_it_is_upgraded(
    site: Site, agent: Agent
) -> None:
    def passing() -> bool:
        return bool(json.loads(site.consul.call("GET", "health/service/shop?passing&consistent")[2]))

    site.service("app", ["stop", "upgrade", "start"])
    own = {"consul_service_names": ["shop"], "consul_service_others_passing": 0}
    own["consul_service_agent"] = f"http://127.0.0.1:{agent.http_port}"
    site.inventory({"web": {"plane": "dataplane", "services": ["app", "consul_service"]}}, {"web": ["web1"]}, web1=own)
    site.consul.call("PUT", "agent/service/register", json.dumps({"Name": "shop"}).encode())
    try:
        wait_for(passing, "the service passes")
        broken = site.fail("web1", "app/upgrade")
        site.play("upgrade", version="v1", code=2)
        assert (site.record("web1")["state"], passing()) == ("failed", False)
        broken.unlink()
        site.sleep(60)
        process = site.start("upgrade", version="v1", retry_failed=True)
        wait_for(lambda: len(site.entries()) > 3, "the upgrade has begun again")
        kill(process)
        assert (site.record("web1")["state"], passing()) == ("started", False)
        site.sleep(0)
        site.play("upgrade", version="v1")
        assert (site.reported("v1"), passing()) == ({"web1"}, True)
    finally:
        site.consul.call("PUT", "agent/service/deregister/shop")
