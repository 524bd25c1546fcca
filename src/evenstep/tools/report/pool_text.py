"""Advice on pool sort as plain text for a terminal."""

from __future__ import annotations

import textwrap

from evenstep.tools.advise.pool_size import PoolAdvice
from evenstep.tools.report.table import text_table

_SPREAD = ((0.8, "high"), (0.4, "medium"), (0.0, "low"))
_LOST = {
    "ranks": "ranks wait for each other: rank synchronisation is the bottleneck, which pool sort "
    "removes",
    "padding": "padding is the bottleneck, not rank synchronisation; batches of like lengths, as "
    "pool sort makes them, remove it",
    "data": "waits for data are the bottleneck, which no pool removes: more workers may",
    "": "nothing takes 5 % of its time, so there is little to gain",
}


def pool_text(advice: PoolAdvice) -> str:
    """Figures of the data, of the run and of the pools, and the recommendation."""
    best, unsorted = advice.recommended, advice.unsorted
    spread = next(word for least, word in _SPREAD if advice.cv >= least)
    data = (
        f"{advice.name}: CV of lengths {advice.cv:.2f}, {spread}. Without pools "
        f"{advice.world_size:,} ranks with batches of {advice.batch_size:,} wait for each other "
        f"{unsorted.waits:.1%} of the time (predicted)."
    )
    recommended = (
        f"Recommended: pool_size={best.pool_size:,}, {best.pool_size // advice.batch_size:,} "
        f"batches: waits of {best.waits:.1%} (predicted)."
    )
    text = [textwrap.fill(part, 100) for part in (data, _of_run(advice), recommended)]
    return "\n\n".join([*text, _table(advice), _footnote(advice)])


def _of_run(advice: PoolAdvice) -> str:
    run, bottleneck = advice.run, advice.bottleneck
    if run is None or bottleneck is None:
        return "No run was given: --step-log says whether ranks wait for each other in yours."
    active = {True: "sorts pools", False: "does not sort pools", None: "may sort pools or not"}
    shares = run.shares
    return (
        f"{run.name}: the run {active[advice.active]}. Of its time {shares['ranks']:.1%} go to "
        f"waits for the slowest rank, {shares['padding']:.1%} to padding, {shares['data']:.1%} to "
        f"waits for data. {_LOST[bottleneck][0].upper()}{_LOST[bottleneck][1:]}."
    )


def _table(advice: PoolAdvice) -> str:
    rows, found = [], advice.rows
    for one, own in zip(found[::2], found[1::2]):
        row = [f"{one['pool_size']:,}", f"{one['workers']}", f"{one['imbalance']:.3f}"]
        row += [f"{one['waits']:.1%}", f"{one['padding']:.1%}"]
        for each in (one, own):
            seconds = each["first_batch_seconds"]
            row.append(
                f"{each['first_batch_samples']:,.0f}" if seconds is None else f"{seconds:,.1f} s"
            )
            row.append(f"{each['memory'] / 1e6:,.1f} MB")
        rows.append(row)
    header = ["pool_size", "workers", "imbalance", "waits", "padding"]
    header += ["first batch", "memory", "first batch*", "memory*"]
    return text_table(header, rows)


def _footnote(advice: PoolAdvice) -> str:
    text = (
        "first batch, memory: of a rank, with evenstep.PoolSort, whose workers fill one pool;\n"
        "* with PoolSortDataset, where each worker fills its own."
    )
    if advice.sample_seconds is None:
        text += (
            "\nFirst batches are in samples that a worker prepares; --sample-seconds S\n"
            "makes them seconds."
        )
    return text
