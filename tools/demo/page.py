# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the page of the demonstration up to date until it is ended, through all of its rollouts.

    page.py FOLDER

`status.yml -e page=FOLDER` does the same for one rollout.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ansible.plugins.loader import init_plugin_loader

# Must run before any import from a collection, or Ansible does not find collections.
init_plugin_loader()

from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import read_settings
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import follow
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage

# Between two rollouts (seconds).
_PAUSE = 0.5


def main() -> None:
    """Write the page until a signal ends this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = read_settings(lambda _option: None, os.environ)
    try:
        with LivePage(Store(settings), sys.argv[1]) as page:
            while True:
                for found in follow(settings):
                    page.update(found)
                time.sleep(_PAUSE)
    except UpgradeError as error:
        sys.exit(f"The demonstration has no page: {error.as_text()}")


if __name__ == "__main__":
    main()
