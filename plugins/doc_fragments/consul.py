# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options by which everything in this collection reaches Consul."""

from __future__ import annotations


class ModuleDocFragment:
    """Connection options: DOCUMENTATION for modules, and PLUGIN what lookups and other plugins add to it."""

    DOCUMENTATION = r"""
options:
  host:
    description:
      - Name or address of the Consul agent to talk to.
      - Without it, the host of E(CONSUL_HTTP_ADDR) is used, else V(127.0.0.1).
    type: str
  port:
    description:
      - Port of the agent's HTTP or HTTPS interface.
      - Without it, the port of E(CONSUL_HTTP_ADDR) is used, else V(8500).
    type: int
  scheme:
    description:
      - Whether to speak HTTP or HTTPS.
      - Without it, that of E(CONSUL_HTTP_ADDR) is used, or V(https) if E(CONSUL_HTTP_SSL) is true, else V(http).
    type: str
    choices: [http, https]
  token:
    description:
      - Secret ID of the ACL token to use. It is sent in a header and never shown.
      - Without it, E(CONSUL_HTTP_TOKEN) is used.
    type: str
  validate_certs:
    description:
      - Whether the certificate of the agent has to be valid.
      - Without it, E(CONSUL_HTTP_SSL_VERIFY) is used, else V(true).
    type: bool
  ca_path:
    description:
      - File with the certificates of the authorities to trust, in PEM format.
      - Without it, E(CONSUL_CACERT) is used, else the authorities that the system trusts.
    type: path
  client_cert:
    description:
      - File with the client certificate, in PEM format. Goes together with O(client_key).
      - Without it, E(CONSUL_CLIENT_CERT) is used.
    type: path
  client_key:
    description:
      - File with the key of the client certificate, in PEM format. Goes together with O(client_cert).
      - Without it, E(CONSUL_CLIENT_KEY) is used.
    type: path
  datacenter:
    description:
      - Datacenter whose keys are meant. Without it, that of the agent.
    type: str
  timeout:
    description:
      - Seconds that one request may take, and for which reading is tried again while Consul can't be reached.
    type: float
    default: 10
  pass_limit:
    description:
      - Seconds that may pass from reading the fleet to beginning a rollout or admitting hosts, above 0 and at most 60. A planner that takes
        longer reads again, and fails with C(too_slow) after three such tries in a row.
      - Only what plans uses it. Within this time a planner may miss that hosts fail, so raise it only for a slow Consul. It never misses
        holds, commands and other planners.
    type: float
    default: 5
  kv_prefix:
    description:
      - Folder in Consul under which all keys of the fleet stand. Empty for none, as in the original layout.
    type: str
    default: ''
requirements:
  - py-consul (or python-consul, whose API it continues)
"""

    PLUGIN = r"""
options:
  host:
    vars:
      - name: upgrade_consul_host
  port:
    vars:
      - name: upgrade_consul_port
  scheme:
    vars:
      - name: upgrade_consul_scheme
  token:
    env:
      - name: CONSUL_HTTP_TOKEN
    vars:
      - name: upgrade_consul_token
  validate_certs:
    vars:
      - name: upgrade_consul_validate_certs
  ca_path:
    env:
      - name: CONSUL_CACERT
    vars:
      - name: upgrade_consul_ca_path
  client_cert:
    env:
      - name: CONSUL_CLIENT_CERT
    vars:
      - name: upgrade_consul_client_cert
  client_key:
    env:
      - name: CONSUL_CLIENT_KEY
    vars:
      - name: upgrade_consul_client_key
  datacenter:
    vars:
      - name: upgrade_consul_datacenter
  timeout:
    vars:
      - name: upgrade_consul_timeout
  pass_limit:
    vars:
      - name: upgrade_consul_pass_limit
  kv_prefix:
    vars:
      - name: upgrade_consul_kv_prefix
"""
