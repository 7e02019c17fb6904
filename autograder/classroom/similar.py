"""Submissions whose syntax is nearly the same, whatever they call their variables. A list to look at, never a verdict.

Short right solutions look alike, so what many have in common says nothing. Each piece of syntax counts the more the fewer have it; what
stands in the stubs does not count at all.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from autograder.classroom.shape import shape

_STUBS = Path(__file__).parents[2] / "student"
_RARE = 0.03  # share of the class that may have a piece for it to bring two submissions together; five always may
_LEAST = 8  # rare pieces in common
_SIMILAR = 0.6
_MANY = 100  # pairs that are listed


@dataclass(frozen=True)
class Pair:
    """Two submissions, or more if their syntax is exactly the same."""

    submissions: tuple[str, ...]
    similarity: float  # 1: the same
    common: int  # pieces in common that few others have


def similar(shapes: Mapping[str, tuple[int, ...]]) -> list[Pair]:
    """Return who should be looked at, the most similar first.

    Args:
        shapes: each submission's, as `shape` gives them.
    """
    stubs = set(shape({path.name: path.read_bytes() for path in sorted(_STUBS.glob("*.py"))}))
    pieces = {id: frozenset(numbers) - stubs for id, numbers in shapes.items()}
    same: dict[frozenset[int], list[str]] = {}
    for id, own in pieces.items():
        if len(own) >= _LEAST:
            same.setdefault(own, []).append(id)
    found = [Pair(tuple(ids), 1.0, len(own)) for own, ids in same.items() if len(ids) > 1]

    one_of_each = {ids[0]: own for own, ids in same.items()}
    owners: dict[int, list[str]] = {}
    for id, own in one_of_each.items():
        for piece in own:
            owners.setdefault(piece, []).append(id)
    weight = {piece: math.log(len(one_of_each) / len(ids)) for piece, ids in owners.items()}
    total = {id: sum(weight[piece] for piece in own) for id, own in one_of_each.items()}
    rare = max(5, _RARE * len(one_of_each))
    common: Counter[tuple[str, str]] = Counter()
    for ids in owners.values():
        if 2 <= len(ids) <= rare:
            common.update(combinations(sorted(ids), 2))
    for (a, b), count in common.items():
        if count >= _LEAST:
            shared = sum(weight[piece] for piece in one_of_each[a] & one_of_each[b])
            similarity = shared / (total[a] + total[b] - shared)
            if similarity >= _SIMILAR:
                found.append(Pair((a, b), similarity, count))
    return sorted(found, key=lambda pair: (-pair.similarity, -pair.common, pair.submissions))[:_MANY]
