# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cache has after each refresh is what Consul has, whatever was changed meanwhile. Consul is a model of it here."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import unquote

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._cache import key_cache, partitions
from ansible_collections.convoy.upgrade.plugins.module_utils._cache.cached_store import CachedStore
from ansible_collections.convoy.upgrade.plugins.module_utils._cache.key_cache import KeyCache
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul import transport
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import ConsulClient
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Conflict
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation.consul.acl import parse
from simulation.consul.keys import Entry
from simulation.consul.server import Answer, Request, Server

HOSTS, REPORTS, GATES = "upgrade/hosts/", "running/versions/", "config_state/enable_puppet/"
FOLDERS = ("upgrade/ledger", HOSTS, REPORTS, GATES)


class Consul:
    """A model of Consul in the place of the HTTP library.

    :param requests: the paths of the requests so far.
    """

    def __init__(self) -> None:
        self.server = Server(new_id=lambda: "s")
        self.requests: list[str] = []

    def put(self, key: str, value: str = "x") -> None:
        self.server.index += 1
        text = base64.b64encode(value.encode()).decode()
        self.server.keys.put(key, Entry(text, self.server.index, 0))

    def delete(self, key: str) -> None:
        self.server.index += 1
        self.server.keys.delete(key, self.server.index)

    def below(self, *prefixes: str) -> dict[str, int]:
        return {key: one.modified for key, one in self.server.keys.entries.items() if key.startswith(prefixes)}

    def send(self, method: str, path: str, params: Any, data: str, token: str) -> Any:
        self.requests.append(path)
        found = self.server.answer(Request(method, unquote(path), dict(params), data, token, 0))
        assert isinstance(found, Answer)
        return found

    @contextmanager
    def in_place(self) -> Iterator[Consul]:
        def client(*_given: Any) -> Any:
            session = SimpleNamespace(mount=lambda *_: None, headers={})

            def method(name: str) -> Any:
                def send(callback: Any, path: str, params: Any = (), data: str = "") -> Any:
                    return callback(self.send(name, path, params, data, session.headers.get("X-Consul-Token", "")))

                return send

            return SimpleNamespace(session=session, **{name: method(name) for name in ("get", "put", "delete")})

        with mock.patch.object(transport, "HTTPClient", client):
            yield self


class Reader:
    """A cache, and the keys that its changes add up to."""

    def __init__(self) -> None:
        self.cache = KeyCache(ConsulClient(Settings()), FOLDERS)
        self.found: dict[str, int] = {}

    def refresh(self) -> key_cache.Changes:
        changes = self.cache.refresh()
        for key in changes.removed:
            del self.found[key]
        for entry in changes.set:
            assert self.found.get(entry.key) != entry.modify_index
            self.found[entry.key] = entry.modify_index
        return changes


@pytest.fixture
def consul(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consul]:
    """Divide folders of some keys already."""
    monkeypatch.setattr(partitions, "LEAST_TO_DIVIDE", 8)
    monkeypatch.setattr(key_cache, "LEAST_TO_DIVIDE", 8)
    monkeypatch.setattr(partitions, "_LEAST", 3)
    monkeypatch.setattr(key_cache, "_MOST_ADDED", 4)
    with Consul().in_place() as consul:
        yield consul


_KEYS = st.one_of(
    st.integers(1, 30).map(lambda number: f"{HOSTS}web{number}"),
    st.builds(lambda version, number: f"{REPORTS}{version}/web{number}", st.sampled_from("abc"), st.integers(1, 30)),
    st.builds(
        lambda name, number: f"{GATES}host/{name}{number}", st.sampled_from(("web", "db", "x")), st.integers(1, 30)
    ),
    st.sampled_from(
        ("upgrade/ledger", f"{HOSTS}db1", f"{HOSTS}web", f"{GATES}global", "upgrade/hosts-old/web1", "else")
    ),
)
_CHANGES = st.lists(st.tuples(st.sampled_from(("put", "put", "delete")), _KEYS), max_size=12)
_ROUNDS = st.lists(st.one_of(_CHANGES, st.sampled_from(("snapshot", "restore"))), max_size=8)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(1, 30), max_size=30), _ROUNDS)
def test_a_cache_has_what_consul_has(consul: Consul, first: set[int], rounds: list[Any]) -> None:
    consul.__init__()  # type: ignore[misc]
    for number in first:
        consul.put(f"{HOSTS}web{number}")
        consul.put(f"{REPORTS}a/web{number}")
        consul.put(f"{GATES}host/web{number}")
    reader = Reader()
    reader.refresh()
    kept = consul.server.snapshot()
    value = 0
    for changes in rounds:
        if changes == "snapshot":
            kept = consul.server.snapshot()
        elif changes == "restore":
            consul.server.restore(kept, 0.0)
        else:
            for what, key in changes:
                value += 1
                consul.put(key, str(value)) if what == "put" else consul.delete(key)
        reader.refresh()
        assert reader.found == consul.below(*FOLDERS)


def test_a_restore_brings_back_a_key_that_was_deleted_before_the_first_read(consul: Consul) -> None:
    for role in "abcdef":
        for number in range(1, 4):
            consul.put(f"{HOSTS}{role}{number}")
    kept = consul.server.snapshot()
    consul.delete(f"{HOSTS}b2")
    reader = Reader()
    reader.refresh()
    consul.server.restore(kept, 0.0)
    # Each partition has the same highest index as before, but one more key.
    reader.refresh()
    assert reader.found == consul.below(*FOLDERS)


def test_only_the_changed_partition_is_read_again(consul: Consul) -> None:
    for number in range(1, 31):
        consul.put(f"{HOSTS}web{number}")
    reader = Reader()
    reader.refresh()
    reader.refresh()
    consul.requests.clear()
    consul.put(f"{HOSTS}web17", "changed")
    assert [one.key for one in reader.refresh().set] == [f"{HOSTS}web17"]
    # The folder, its names, its partitions, one read, and the folder again.
    parts = len(reader.cache._folders[HOSTS].parts)
    assert 5 < parts < 30
    assert len(consul.requests) == 4 + parts
    consul.requests.clear()
    assert reader.refresh().set == []
    assert consul.requests == ["/v1/kv/upgrade/hosts", "/v1/txn", "/v1/kv/upgrade/hosts"]


def test_a_small_fleet_takes_one_request(consul: Consul) -> None:
    consul.put(f"{HOSTS}web1")
    reader = Reader()
    for _each in range(3):
        consul.requests.clear()
        reader.refresh()
        assert consul.requests == ["/v1/txn"]


@pytest.mark.parametrize("key", [f"{HOSTS}zeta1", f"{GATES}host/zeta1", f"{REPORTS}c/zeta1"])
def test_a_key_that_fits_no_partition_is_found_at_once_beside_another_change(consul: Consul, key: str) -> None:
    for number in range(1, 31):
        consul.put(f"{HOSTS}web{number}")
        consul.put(f"{GATES}host/web{number}")
        consul.put(f"{REPORTS}a/web{number}")
    reader = Reader()
    reader.refresh()
    reader.refresh()
    consul.put(key)
    consul.put(f"{HOSTS}web1", "changed")
    reader.refresh()
    assert reader.found == consul.below(*FOLDERS)


@pytest.mark.parametrize("at_once", [1, 100])
def test_keys_that_fit_no_partition_take_few_requests(at_once: int) -> None:
    with Consul().in_place() as consul:
        for number in range(2000):
            consul.put(f"{GATES}host/compute{number}")
        reader = Reader()
        reader.refresh()
        reader.refresh()
        most = 0
        for number in range(200):
            consul.put(f"{GATES}host/storage{number}")
            if (number + 1) % at_once:
                continue
            consul.requests.clear()
            reader.refresh()
            most = max(most, len(consul.requests))
        assert reader.found == consul.below(*FOLDERS)
        # The partitions, those that were added, and four.
        assert most <= reader.cache._folders[GATES].divided_into + key_cache._MOST_ADDED + 4


def test_all_keys_belong_to_one_moment(consul: Consul, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that read gates of before the ledger would see free slots, and its write would succeed."""
    for number in range(1, 31):
        consul.put(f"{GATES}host/web{number}")
    reader = Reader()
    reader.refresh()
    reader.refresh()
    send = consul.send

    def late(method: str, path: str, *given: Any) -> Any:
        if path.endswith("/txn") and f"{GATES}host/zeta1" not in consul.server.keys.entries:
            # Another planner admits a host, after the gates were found to be unchanged.
            consul.put(f"{GATES}host/zeta1")
            consul.put("upgrade/ledger")
        return send(method, path, *given)

    monkeypatch.setattr(consul, "send", late)
    reader.refresh()
    assert "upgrade/ledger" in reader.found and f"{GATES}host/zeta1" in reader.found


def test_everything_is_read_again_after_a_while(consul: Consul, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(runtime, "monotonic", lambda: now)
    for number in range(1, 31):
        consul.put(f"{HOSTS}web{number}")
    reader = Reader()
    reader.refresh()
    # Consul has forgotten the deletion.
    consul.delete(f"{HOSTS}web9")
    consul.server.keys.graves.clear()
    consul.server.keys._indexes.clear()
    now += 301
    assert reader.refresh().removed == [f"{HOSTS}web9"]


def test_a_missing_known_key_is_a_conflict_and_nothing_is_forgotten(consul: Consul) -> None:
    consul.put(f"{HOSTS}web1")
    reader = Reader()
    reader.refresh()
    with pytest.raises(Conflict):
        reader.cache.refresh(["upgrade/history/7"])
    consul.put("upgrade/history/7")
    changes = reader.cache.refresh(["upgrade/history/7"])
    assert ([one.key for one in changes.known], changes.set) == (["upgrade/history/7"], [])


def test_a_read_that_fails_is_followed_by_a_read_of_everything(consul: Consul) -> None:
    consul.put(f"{HOSTS}web1")
    reader = Reader()
    reader.refresh()
    consul.server.tokens = {}
    with pytest.raises(UpgradeError):
        reader.cache.refresh()
    consul.server.tokens = None
    assert [one.key for one in reader.cache.refresh().set] == [f"{HOSTS}web1"]


def test_a_store_with_a_cache_reads_what_a_store_reads(consul: Consul) -> None:
    consul.put("current_version", "b")
    for number in range(1, 31):
        consul.put(f"{HOSTS}web{number}", '{"version": "a", "state": "upgraded"}')
        consul.put(f"{REPORTS}a/web{number}", "5")
    cached = CachedStore(Settings())
    for change in (lambda: None, lambda: consul.put(f"{HOSTS}web3", "?"), lambda: consul.delete(f"{REPORTS}a/web1")):
        change()
        found, expected = cached.snapshot(), Store(Settings()).snapshot()
        for name in ("reports", "records", "gates", "holds", "index", "current_version"):
            assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("kind", [CachedStore, Store])
def test_a_folder_that_a_token_may_not_read_any_more_is_refused(kind: type[Store], consul: Consul) -> None:
    consul.put("upgrade/schema", "1")
    for key in (f"{HOSTS}web1", f"{REPORTS}a/web1", "config_state/enable_puppet/global", "upgrade/hold/"):
        consul.put(key, "{}")
    rules = 'key_prefix "" { policy = "read" }'
    consul.server.tokens = {"t": parse(rules)}
    store = kind(Settings(token="t"))
    # The folders of jobs are empty.
    for requests in (3, 1):
        consul.requests.clear()
        store.snapshot()
        assert len(consul.requests) == requests or kind is CachedStore
    consul.server.tokens = {"t": parse(f'{rules} key_prefix "{HOSTS}" {{ policy = "deny" }}')}
    for _try in range(2):
        with pytest.raises(UpgradeError) as refused:
            store.snapshot()
        assert refused.value.code == "denied"


@pytest.mark.parametrize("kind", [CachedStore, Store])
def test_without_a_token_hidden_holds_are_refused_too(kind: type[Store], consul: Consul) -> None:
    consul.put("upgrade/schema", "1")
    store = kind(Settings())
    for requests in (2, 1):
        consul.requests.clear()
        store.snapshot()
        assert len(consul.requests) == requests or kind is CachedStore
    consul.put("upgrade/hold/", "")
    consul.requests.clear()
    fresh = kind(Settings())
    fresh.snapshot()
    assert len(consul.requests) == 1 or kind is CachedStore, "a rollout has begun, which wrote the key of the folder"
    rules = 'key_prefix "" { policy = "read" } key_prefix "upgrade/hold/" { policy = "deny" }'
    consul.server.tokens = {"": parse(rules)}
    for one in (fresh, kind(Settings())):
        with pytest.raises(UpgradeError) as refused:
            one.snapshot()
        assert refused.value.code == "denied"
