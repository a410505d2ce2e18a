# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection settings: options first, then the environment variables of Consul's own tools, then defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings, read_settings


def read(options: dict[str, Any] | None = None, **environ: str) -> Settings:
    return read_settings((options or {}).get, environ)


def test_the_defaults() -> None:
    assert read() == Settings(
        host="127.0.0.1",
        port=8500,
        scheme="http",
        token=None,
        verify=True,
        cert=None,
        datacenter=None,
        timeout=10.0,
        kv_prefix="",
    )
    assert read().url == "http://127.0.0.1:8500"


def test_all_options() -> None:
    options = {
        "host": "consul.example.org",
        "port": 8501,
        "scheme": "https",
        "token": "s3cret",
        "validate_certs": True,
        "ca_path": "/ca.pem",
        "client_cert": "/cert.pem",
        "client_key": "/key.pem",
        "datacenter": "dc2",
        "timeout": 2,
        "kv_prefix": "clouds/gb",
        "pass_limit": 30,
    }

    assert read(options) == Settings(
        "consul.example.org",
        8501,
        "https",
        "s3cret",
        "/ca.pem",
        ("/cert.pem", "/key.pem"),
        "dc2",
        2.0,
        "clouds/gb/",
        30.0,
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CONSUL_HTTP_ADDR": "consul:8600"}, {"host": "consul", "port": 8600, "scheme": "http"}),
        ({"CONSUL_HTTP_ADDR": "consul"}, {"host": "consul", "port": 8500}),
        ({"CONSUL_HTTP_ADDR": "10.0.0.7:8600"}, {"host": "10.0.0.7", "port": 8600}),
        ({"CONSUL_HTTP_ADDR": "https://consul:8501"}, {"host": "consul", "port": 8501, "scheme": "https"}),
        ({"CONSUL_HTTP_ADDR": "http://consul:8500/"}, {"host": "consul", "port": 8500, "scheme": "http"}),
        ({"CONSUL_HTTP_ADDR": "[::1]:8600"}, {"host": "[::1]", "port": 8600, "url": "http://[::1]:8600"}),
        ({"CONSUL_HTTP_ADDR": ""}, {"host": "127.0.0.1"}),
        ({"CONSUL_HTTP_TOKEN": "s3cret"}, {"token": "s3cret"}),
        ({"CONSUL_HTTP_TOKEN": ""}, {"token": None}),
        ({"CONSUL_HTTP_SSL": "true"}, {"scheme": "https"}),
        ({"CONSUL_HTTP_SSL": "1", "CONSUL_HTTP_ADDR": "consul:8501"}, {"scheme": "https", "host": "consul"}),
        ({"CONSUL_HTTP_SSL": "false"}, {"scheme": "http"}),
        ({"CONSUL_HTTP_SSL": ""}, {"scheme": "http"}),
        ({"CONSUL_HTTP_SSL": "false", "CONSUL_HTTP_ADDR": "https://consul"}, {"scheme": "https"}),
        ({"CONSUL_HTTP_SSL": "true", "CONSUL_HTTP_ADDR": "http://consul:8501"}, {"scheme": "https", "port": 8501}),
        ({"CONSUL_NAMESPACE": "default", "CONSUL_PARTITION": ""}, {"host": "127.0.0.1"}),
        ({"CONSUL_HTTP_SSL_VERIFY": "false"}, {"verify": False}),
        ({"CONSUL_HTTP_SSL_VERIFY": "0", "CONSUL_CACERT": "/ca.pem"}, {"verify": False}),
        ({"CONSUL_HTTP_SSL_VERIFY": "TRUE"}, {"verify": True}),
        ({"CONSUL_HTTP_SSL_VERIFY": ""}, {"verify": True}),
        ({"CONSUL_CACERT": "/ca.pem"}, {"verify": "/ca.pem"}),
        ({"CONSUL_CLIENT_CERT": "/cert.pem", "CONSUL_CLIENT_KEY": "/key.pem"}, {"cert": ("/cert.pem", "/key.pem")}),
    ],
)
def test_variables_of_consuls_own_tools_are_fallbacks(environ: dict[str, str], expected: dict[str, Any]) -> None:
    found = read(**environ)

    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        ({"host": "mine"}, {"CONSUL_HTTP_ADDR": "other:8600"}, {"host": "mine", "port": 8600}),
        ({"port": 1}, {"CONSUL_HTTP_ADDR": "other:8600"}, {"host": "other", "port": 1}),
        ({"scheme": "http"}, {"CONSUL_HTTP_ADDR": "https://other"}, {"scheme": "http"}),
        ({"scheme": "http"}, {"CONSUL_HTTP_SSL": "true"}, {"scheme": "http"}),
        ({"token": "mine"}, {"CONSUL_HTTP_TOKEN": "other"}, {"token": "mine"}),
        ({"validate_certs": True}, {"CONSUL_HTTP_SSL_VERIFY": "false"}, {"verify": True}),
        ({"validate_certs": False}, {"CONSUL_HTTP_SSL_VERIFY": "true"}, {"verify": False}),
        ({"validate_certs": False}, {"CONSUL_CACERT": "/ca.pem"}, {"verify": False}),
        ({"ca_path": "/mine.pem"}, {"CONSUL_CACERT": "/other.pem"}, {"verify": "/mine.pem"}),
        (
            {"client_cert": "/mine.pem", "client_key": "/mine.key"},
            {"CONSUL_CLIENT_CERT": "/other.pem", "CONSUL_CLIENT_KEY": "/other.key"},
            {"cert": ("/mine.pem", "/mine.key")},
        ),
        ({"client_cert": "/mine.pem"}, {"CONSUL_CLIENT_KEY": "/other.key"}, {"cert": ("/mine.pem", "/other.key")}),
    ],
)
def test_options_win_over_variables(options: dict[str, Any], environ: dict[str, str], expected: dict[str, Any]) -> None:
    found = read(options, **environ)

    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address_gets_brackets(host: str) -> None:
    assert read({"host": host}).url == "http://[::1]:8500"


@pytest.mark.parametrize(
    ("given", "prefix"), [("", ""), (None, ""), ("/", ""), ("cloud", "cloud/"), ("/clouds/gb/", "clouds/gb/")]
)
def test_a_prefix_ends_with_one_slash_and_begins_with_none(given: str | None, prefix: str) -> None:
    assert read({"kv_prefix": given}).kv_prefix == prefix


def refusal(options: dict[str, Any] | None = None, **environ: str) -> str:
    with pytest.raises(UpgradeError) as caught:
        read(options, **environ)
    assert caught.value.code == "bad_connection"
    return caught.value.message


@pytest.mark.parametrize(
    "address",
    [
        "unix:///var/run/consul.sock",
        "ftp://consul",
        "consul:port",
        "consul:99999",
        "http://",
        ":8500",
        "consul:8500/v1/kv",
        "[::1",
    ],
)
def test_an_invalid_address_is_refused(address: str) -> None:
    assert refusal(CONSUL_HTTP_ADDR=address) == (
        f"CONSUL_HTTP_ADDR: {address!r} is not an address of the form host:port or https://host:port "
        "(Unix sockets are not supported)."
    )


@pytest.mark.parametrize("name", ["CONSUL_HTTP_SSL", "CONSUL_HTTP_SSL_VERIFY"])
def test_a_variable_that_is_neither_true_nor_false_is_refused(name: str) -> None:
    assert refusal(**{name: "maybe"}) == f"{name}: 'maybe' is neither true nor false."


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_an_invalid_duration_is_refused(timeout: float) -> None:
    assert refusal({"timeout": timeout}) == f"timeout: {timeout} is not a number of seconds above 0."


@pytest.mark.parametrize(
    ("options", "environ", "only"),
    [
        ({"client_cert": "/cert.pem"}, {}, "client_cert"),
        ({"client_key": "/key.pem"}, {}, "client_key"),
        ({}, {"CONSUL_CLIENT_KEY": "/key.pem"}, "client_key"),
    ],
)
def test_a_certificate_without_its_key_is_refused(options: dict[str, str], environ: dict[str, str], only: str) -> None:
    assert refusal(options, **environ) == (
        f"client_cert and client_key (CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY) go together: only {only} is set."
    )


def test_the_token_is_not_shown() -> None:
    assert "s3cret" not in repr(read({"token": "s3cret"}))


@pytest.mark.parametrize("limit", [0, -1, 60.1, float("nan")])
def test_a_pass_limit_is_at_most_a_minute(limit: float) -> None:
    assert refusal({"pass_limit": limit}) == f"pass_limit: {limit} is not a number of seconds above 0 and up to 60."
    assert read({"pass_limit": 60}).pass_limit == 60


def test_the_token_may_be_in_a_file_that_the_environment_names(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    from_file = {"CONSUL_HTTP_TOKEN_FILE": str(file)}
    assert read(**from_file).token == "s3cret"
    # Ansible may have read the variable already. As for Consul's own tools, the file comes before it, and the option before both.
    for option in (None, "other"):
        assert read({"token": option}, CONSUL_HTTP_TOKEN="other", **from_file).token == "s3cret"
    assert read({"token": "mine"}, CONSUL_HTTP_TOKEN="other", **from_file).token == "mine"
    assert read(CONSUL_HTTP_TOKEN="other", CONSUL_HTTP_TOKEN_FILE="").token == "other"


def test_a_token_file_without_a_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert refusal(CONSUL_HTTP_TOKEN_FILE=str(file), CONSUL_HTTP_TOKEN="other") == (
        f"CONSUL_HTTP_TOKEN_FILE: {str(file)!r} can't be read (No such file or directory). Give the absolute path of a file that this user can read, or "
        "unset it."
    )
    file.write_text("\n")
    assert refusal(CONSUL_HTTP_TOKEN_FILE=str(file)).endswith(" is empty. Write the token to it, or unset it.")
    file.write_bytes(b"\xff\xfe")
    assert "can't be read (it is not text)" in refusal(CONSUL_HTTP_TOKEN_FILE=str(file))


@pytest.mark.parametrize("name", ["CONSUL_NAMESPACE", "CONSUL_PARTITION"])
def test_keys_of_another_namespace_are_another_fleet_and_refused(name: str) -> None:
    assert refusal(**{name: "team1"}).startswith(f"{name}: 'team1' is not supported: the keys of a fleet are in the ")
