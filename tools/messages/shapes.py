# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a message looks like when the parts that differ from call to call are left open."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import product

OPEN = "…"
_MOST = 12
_FEW = 2
_PHRASE = 10


def joined(parts: Iterable[Iterable[str]]) -> set[str]:
    """Return all texts that are made by taking one of each part; where these are too many, the part with the most is left open."""
    choices = [sorted(set(part)) or [OPEN] for part in parts]
    while _count(choices) > _MOST:
        longest = max(range(len(choices)), key=lambda at: len(choices[at]))
        choices[longest] = [OPEN]
    return {tidy("".join(chosen)) for chosen in product(*choices)}


def _count(choices: list[list[str]]) -> int:
    count = 1
    for choice in choices:
        count *= len(choice)
    return count


def tidy(text: str) -> str:
    """Return a text on one line, in which nothing is open twice on end."""
    return re.sub(rf"{OPEN}+", OPEN, re.sub(r"\s+", " ", text))


def tells(text: str) -> bool:
    """Return whether somebody could look for a text: whether it has words of its own."""
    return len(re.findall(r"[a-z]{2,}", text)) > 1


def is_sentence(text: str) -> bool:
    """Return whether a text says something by itself, and is not a word or two of a sentence."""
    return text[:1].isupper() or len(re.findall(r"[a-z]+", text)) > _PHRASE


def pattern(text: str) -> str:
    """Return a regular expression for the messages that a text stands for."""
    parts = r".*?".join(map(re.escape, text.split(OPEN)))
    # What is left open may be nothing at all, and no space then.
    return parts.replace(r"\ .*?\ ", r"\ (?:.*?\ )?")


def merged(found: Iterable[str]) -> list[str]:
    """Return texts in their order, without those that another one stands for too.

    What begins more than two of them in another way each is left open, and so is a word that another one leaves open.
    """
    by_rest: defaultdict[str, set[str]] = defaultdict(set)
    for text in found:
        first, colon, rest = text.strip().partition(": ")
        by_rest[rest if colon and tells(rest) else text.strip()].add(first if colon and tells(rest) else "")
    shorter = {
        f"{first}: {rest}" if first else rest
        for rest, firsts in by_rest.items()
        for first in ({OPEN} if len(firsts) > _FEW else firsts)
    }
    return sorted(text for text in shorter if not any(_stands_for(other, text) for other in shorter - {text}))


def _stands_for(one: str, other: str) -> bool:
    more = len(_words(other)) - len(_words(one))
    return (
        0 <= more <= 1 and bool(re.fullmatch(pattern(one), other)) and (more > 0 or one.count(OPEN) > other.count(OPEN))
    )


def _words(text: str) -> list[str]:
    return [word for word in text.split() if re.search(r"\w", word)]
