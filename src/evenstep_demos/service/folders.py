"""Files of a tree, grouped into sources by the folders that they lie in."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import count

_LOOSE = "modules"  # files that lie in no folder


def group_by_folder(
    folders: Sequence[tuple[str, ...]], wanted: int, *, fewest: int = 1
) -> dict[str, list[int]]:
    """Groups of very different size, as folders are.

    The group with most files is split into the folders within it, and the files directly in it,
    until there are as many groups as wanted.

    Args:
        folders: [files] names of the folders that each lies in, outermost first.
        wanted: number of groups.
        fewest: files of a group at least; smaller groups are left out.

    Returns:
        Files of each group by its name, the largest group first: at most `wanted` of them, and
        fewer where folders can be split no further.
    """
    tie = count()
    splittable: list[tuple[int, int, tuple[str, ...], list[int]]] = [
        (-len(folders), next(tie), (), list(range(len(folders))))
    ]
    whole: list[tuple[tuple[str, ...], list[int]]] = []
    groups = 0
    while splittable and groups < wanted:
        _, _, name, files = heapq.heappop(splittable)
        depth = len(name)
        groups -= depth > 0 and len(files) >= fewest
        parts: dict[tuple[str, ...], list[int]] = {}
        for file in files:
            parts.setdefault(folders[file][: depth + 1], []).append(file)
        for part, inside in parts.items():
            groups += len(inside) >= fewest
            if part == name:  # directly in it
                whole.append((part, inside))
            else:
                heapq.heappush(splittable, (-len(inside), next(tie), part, inside))
    found = whole + [(name, files) for _, _, name, files in splittable if name]
    return _largest(found, wanted, fewest)


def _largest(
    found: Sequence[tuple[tuple[str, ...], list[int]]], wanted: int, fewest: int
) -> dict[str, list[int]]:
    named: Mapping[str, list[int]] = {"/".join(name) or _LOOSE: files for name, files in found}
    ranked = sorted(named.items(), key=lambda item: (-len(item[1]), item[0]))
    return {name: files for name, files in ranked[:wanted] if len(files) >= fewest}
