# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands that an operator can paste: the command of this run, and others for the same fleet."""

from __future__ import annotations

import shlex

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.command import AnsibleCommand


def command(line: str, playbook: str = "/x/playbooks/upgrade.yml") -> AnsibleCommand:
    return AnsibleCommand(tuple(shlex.split(line)), playbook)


LINE = "/opt/bin/ansible-playbook -i inv.yml playbooks/upgrade.yml -e version=2 -l web1 --check -e 'upgrade_consul_host=c1 by=ann' -vv"


def test_the_same_command() -> None:
    assert command(LINE).again() == LINE.replace("'upgrade_consul_host=c1 by=ann'", "'upgrade_consul_host=c1 by=ann'")


def test_the_same_command_without_limit_and_with_other_variables() -> None:
    again = command(LINE).again({"version": "3", "upgrade_limit": "web1"}, without=["--limit"])
    assert again == (
        "/opt/bin/ansible-playbook -i inv.yml playbooks/upgrade.yml --check -e 'upgrade_consul_host=c1 by=ann' -vv "
        "-e version=3 -e upgrade_limit=web1"
    )


def test_another_playbook_keeps_the_variables_of_the_fleet_and_drops_the_rest() -> None:
    assert command(LINE).other("approve", {"stage": "canary"}) == (
        "/opt/bin/ansible-playbook -i inv.yml playbooks/approve.yml -e upgrade_consul_host=c1 -vv -e stage=canary"
    )


@pytest.mark.parametrize(
    "options",
    [
        "--inventory-file upgrade.yml",
        "--inv hosts.yml",
        "-i hosts.yml",
        "-bi hosts.yml",
        "--vault-password-file x.yml",
        "-u a.b.c",
        "--become --ask-v -e upgrade_consul_host=c1",
    ],
)
def test_the_value_of_an_option_that_looks_like_a_playbook_is_kept(options: str) -> None:
    line = f"ansible-playbook {options} playbooks/upgrade.yml -f 9"
    assert command(line).again() == line
    assert command(line).other("status") == line.replace("playbooks/upgrade.yml", "playbooks/status.yml")


def test_a_playbook_that_imports_one_of_the_collection_has_no_others_beside_it() -> None:
    site = AnsibleCommand(("ansible-playbook", "plays/site.yml", "-e", "version=2"), "/x/plays/site.yml", imports=True)
    assert site.other("status") == "ansible-playbook convoy.upgrade.status"
    assert site.again() == "ansible-playbook plays/site.yml -e version=2"


@pytest.mark.parametrize(
    ("imports", "given", "printed"),
    [
        (False, "convoy.upgrade.role", "convoy.upgrade.upgrade"),
        (False, "playbooks/role.yml", "playbooks/upgrade.yml"),
        (True, "plays/role.yml", "convoy.upgrade.upgrade"),
    ],
)
def test_the_same_command_with_another_playbook_keeps_all_other_variables(
    imports: bool, given: str, printed: str
) -> None:
    line = f"/opt/ansible-playbook -i inv.yml {given} -t nginx --skip-tags=slow -f 9 -e 'version=2 role=web upgrade_version_from=1' -e db_password=s3cret"
    role = AnsibleCommand(tuple(shlex.split(line)), "/x/playbooks/role.yml", imports=imports)
    variables = '-e upgrade_version_from=1 -e db_password="$DB_PASSWORD" -e version=2'
    assert (
        role.again({"version": "2"}, without=["--tags", "--skip-tags"], renamed={"role": ""}, playbook="upgrade")
        == f"/opt/ansible-playbook -i inv.yml {printed} -f 9 {variables}"
    )


def test_playbooks_of_the_installed_collection_keep_their_names() -> None:
    line = "/opt/ansible-playbook convoy.upgrade.upgrade -e @vars.yml"
    assert command(line).other("retry") == "/opt/ansible-playbook convoy.upgrade.retry -e @vars.yml"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("upgrade_consul_token=s3cret version=2", '-e upgrade_consul_token="$CONSUL_HTTP_TOKEN" -e version=2'),
        ('{"db": {"password": "s3cret"}, "version": "2"}', '-e db="$DB" -e version=2'),
        ("{db_password: s3cret}", ""),
        ("ansible_become_pass=s3cret", '-e ansible_become_pass="$ANSIBLE_BECOME_PASS"'),
        ('{"ansible_ssh_pass": "s3cret"}', '-e ansible_ssh_pass="$ANSIBLE_SSH_PASS"'),
        ('{"db": {"pass": "s3cret"}}', '-e db="$DB"'),
        ("ssh_key_passphrase=s3cret db_pwd=s3cret", '-e ssh_key_passphrase="$SSH_KEY_PASSPHRASE" -e db_pwd="$DB_PWD"'),
        ("{db_pass: s3cret}", ""),
        ("dbpass=s3cret db_pass2=s3cret", '-e dbpass="$DBPASS" -e db_pass2="$DB_PASS2"'),
        ("pwd=s3cret apikey=s3cret", '-e pwd="$PASSWORD" -e apikey="$APIKEY"'),
        ('{"db": {"pwd": "s3cret"}}', '-e db="$DB"'),
        ("upgrade_consul_pass_limit=9", "-e upgrade_consul_pass_limit=9"),
    ],
)
def test_no_secret_is_shown(given: str, printed: str) -> None:
    again = command(f"/opt/ansible-playbook upgrade.yml -e {shlex.quote(given)}").again()
    assert again == f"/opt/ansible-playbook upgrade.yml {printed}".rstrip()


def test_short_options_in_one_word_are_told_apart() -> None:
    assert command("/opt/ansible-playbook upgrade.yml -be upgrade_consul_token=s3cret").again() == (
        '/opt/ansible-playbook upgrade.yml -b -e upgrade_consul_token="$CONSUL_HTTP_TOKEN"'
    )
    for one in ("--e", "--ex", "--extra"):
        again = command(f"/opt/ansible-playbook upgrade.yml {one} db_password=s3cret").again()
        assert again == '/opt/ansible-playbook upgrade.yml -e db_password="$DB_PASSWORD"'
    for one in ("-bvt prepare", "-bvtprepare", "-bvC", "-bvCDl web1"):
        given = command(f"/opt/ansible-playbook upgrade.yml {one} -f 9")
        assert given.other("status") == "/opt/ansible-playbook status.yml -bv -f 9"
    assert (
        command("/opt/ansible-playbook upgrade.yml -bt prepare").again(without=["--tags"])
        == "/opt/ansible-playbook upgrade.yml -b"
    )
    # Nothing of these is ever left out.
    assert (
        command("/opt/ansible-playbook upgrade.yml -vvv -Kb -CD").again()
        == "/opt/ansible-playbook upgrade.yml -vvv -Kb -CD"
    )


def test_limits_are_found_in_each_spelling() -> None:
    for one in ("-l web1", "-lweb1", "--limit web1", "--limit=web1", "--lim web1"):
        assert (
            command(f"/opt/ansible-playbook upgrade.yml {one} -v").again(without=["--limit"])
            == "/opt/ansible-playbook upgrade.yml -v"
        )
