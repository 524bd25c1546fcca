"""Advice on pool sort as plain text for a terminal."""

from __future__ import annotations

import textwrap

from evenstep.tools.advise.pool_size import PoolAdvice
from evenstep.tools.report.table import text_table

_SPREAD = ((0.8, "high"), (0.4, "medium"), (0.0, "low"))


def pool_text(advice: PoolAdvice) -> str:
    """Figures of the data and of the pools, and the recommendation."""
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
    text = [textwrap.fill(part, 100) for part in (data, recommended)]
    return "\n\n".join([*text, _table(advice), _footnote(advice)])


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
