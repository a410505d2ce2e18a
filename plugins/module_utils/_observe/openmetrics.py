# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The OpenMetrics text format for gauges, in a form that is valid in the Prometheus text format too.

See https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md. The textfile collector of node_exporter supports
only types of the Prometheus format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

END = "# EOF\n"


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge with one sample for each set of labels.

    :param samples: pairs of labels and value.
    """

    name: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]


def gauges_as_text(gauges: Iterable[Gauge]) -> str:
    """Return the gauges as text. Gauges without samples are left out."""
    lines: list[str] = []
    for gauge in gauges:
        if gauge.samples:
            lines += [f"# HELP {gauge.name} {_escaped(gauge.help)}", f"# TYPE {gauge.name} gauge"]
            lines += [f"{gauge.name}{_labels(labels)} {_number(value)}" for labels, value in gauge.samples]
    return "".join(f"{line}\n" for line in lines) + END


def _labels(labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{shown}}}" if shown else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
