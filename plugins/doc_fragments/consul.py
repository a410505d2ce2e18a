# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation of the options for the connection to Consul."""

from __future__ import annotations


class ModuleDocFragment:
    """Connection options. DOCUMENTATION is for all plugins; PLUGIN adds variables and environment for plugins that are no modules."""

    DOCUMENTATION = r"""
options:
  host:
    description:
      - Name or address of the Consul agent.
      - The default is the host of E(CONSUL_HTTP_ADDR), else V(127.0.0.1).
    type: str
  port:
    description:
      - Port of the agent's HTTP or HTTPS interface.
      - The default is the port of E(CONSUL_HTTP_ADDR), else V(8500).
    type: int
  scheme:
    description:
      - Whether to use HTTP or HTTPS.
      - The default is V(https) if E(CONSUL_HTTP_SSL) is true, else the scheme of E(CONSUL_HTTP_ADDR), else V(http).
    type: str
    choices: [http, https]
  token:
    description:
      - Secret ID of the ACL token. It is sent in a header and never shown.
      - The default is what is in the file E(CONSUL_HTTP_TOKEN_FILE), else E(CONSUL_HTTP_TOKEN).
    type: str
  validate_certs:
    description:
      - Whether the certificate of the agent must be valid.
      - The default is E(CONSUL_HTTP_SSL_VERIFY), else V(true).
    type: bool
  ca_path:
    description:
      - File with the certificates of trusted authorities, in PEM format.
      - The default is E(CONSUL_CACERT), else the authorities that the system trusts. E(CONSUL_CAPATH) and E(CONSUL_TLS_SERVER_NAME) are not read.
    type: path
  client_cert:
    description:
      - File with the client certificate, in PEM format. It needs O(client_key).
      - The default is E(CONSUL_CLIENT_CERT).
    type: path
  client_key:
    description:
      - File with the key of the client certificate, in PEM format. It needs O(client_cert).
      - The default is E(CONSUL_CLIENT_KEY).
    type: path
  datacenter:
    description:
      - Datacenter of the keys. The default is the datacenter of the agent.
    type: str
  timeout:
    description:
      - Longest duration of a request in seconds. If Consul is unreachable, a read is repeated for the same time.
    type: float
    default: 10
  pass_limit:
    description:
      - Longest time in seconds from reading the fleet to beginning a rollout or admitting hosts, above 0 and at most 60. A planner that takes longer
        reads again, and fails with C(too_slow) after three such tries in a row.
      - Only planners use it. Within this time, a planner may miss that hosts fail, so raise it only for a slow Consul. It never misses holds,
        commands or writes of other planners.
    type: float
    default: 5
  kv_prefix:
    description:
      - Folder in Consul for all keys of the fleet. Empty for no folder, as in the original layout.
      - The keys are in the default namespace and partition. Other values of E(CONSUL_NAMESPACE) and E(CONSUL_PARTITION) are refused.
    type: str
    default: ''
requirements:
  - py-consul, or python-consul, which has the same API
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
