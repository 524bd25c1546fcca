"""`owners_by_weight`: which loaders own each source, where nothing but weights is known."""

from __future__ import annotations

from collections.abc import Sequence

_GAIN = 0.98  # of the largest load that must remain at most for a source to be shared


def owners_by_weight(weights: Sequence[float], loaders: int) -> list[list[int]]:
    """[sources] the loaders of each, which own equal parts of it. Every loader has some source, and
    no loader has much more than another: sources are opened by as few loaders as that takes.

    Args:
        weights: [sources] at least 0.
    """
    if loaders >= len(weights):
        return _many_loaders(weights, loaders)
    owners: list[list[int]] = [[] for _ in weights]
    load = [0.0] * loaders
    count = [0] * loaders
    for source in sorted(range(len(weights)), key=lambda each: -weights[each]):
        lightest = min(range(loaders), key=lambda each: (load[each], count[each]))
        owners[source] = [lightest]
        load[lightest] += weights[source]
        count[lightest] += 1
    _share(weights, owners, load)
    return owners


def _many_loaders(weights: Sequence[float], loaders: int) -> list[list[int]]:
    """Each loader has one source, and the next one shares the source that needs it most."""
    owners = [[source] for source in range(len(weights))]
    for loader in range(len(weights), loaders):
        neediest = max(range(len(weights)), key=lambda each: weights[each] / len(owners[each]))
        owners[neediest].append(loader)
    return owners


def _share(weights: Sequence[float], owners: list[list[int]], load: list[float]) -> None:
    """Lets the loader with the most share a source with the one with the least, while it helps."""
    for _ in load:
        most, least = load.index(max(load)), load.index(min(load))
        apart = load[most] - load[least]
        own = [source for source, each in enumerate(owners) if each == [most]]
        if not own:
            return
        source = min(own, key=lambda each: abs(weights[each] - apart))
        half = weights[source] / 2
        if max(load[most] - half, load[least] + half) >= _GAIN * load[most]:
            return
        owners[source] = [most, least]
        load[most] -= half
        load[least] += half
