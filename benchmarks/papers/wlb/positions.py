"""Figure 3: lengths of documents, and how long they are at each position of a window."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.packing_run import cut_at_windows
from evenstep.arrays import Float64Array, Int64Array
from evenstep.tools.simulate import sample_lengths

LENGTHS = "pretrain-128k"
CONTEXT = 131_072
DOCUMENTS = 400_000
PARTS = 16
_PLACES = 8  # positions looked at in each part


def figure_3(seed: int) -> Outcome:
    lengths = sample_lengths(LENGTHS, DOCUMENTS, seed)
    places = (np.arange(PARTS * _PLACES) + 0.5) * CONTEXT / (PARTS * _PLACES)
    goes_on = cut_at_windows(lengths, CONTEXT)[0]
    means = {
        "rest begins the next window": by_position(goes_on, places),
        "rest is dropped": by_position(dropped(lengths), places),
    }
    header = ["a document cut at the end of a window", *map(str, range(1, PARTS + 1)), "max / min"]
    rows = [
        [name, *(f"{m / 1000:.1f}" for m in mean), f"{mean.max() / mean.min():.2f}"]
        for name, mean in means.items()
    ]
    shares = [
        [f"{bound:,}", f"{(lengths <= bound).mean():.2%}", f"{_share(lengths, bound):.1%}"]
        for bound in (1024, 4096, 16_384, 65_536, CONTEXT)
    ]
    first = means["rest begins the next window"]
    return Outcome(
        [
            Table(header, rows, f"Mean length, thousands, in each {PARTS}th of the window"),
            Table(["tokens", "documents up to", "tokens in them"], shares, "Lengths"),
        ],
        "max / min by position about 1.4",
        f"{first.max() / first.min():.2f}; {rows[1][-1]} if the rest is dropped",
    )


def by_position(pieces: Int64Array, places: Float64Array) -> Float64Array:
    """[PARTS] mean length of the piece that a position of a window lies in.

    Args:
        pieces: lengths of pieces that fill window after window.
        places: positions in a window.
    """
    ends = pieces.cumsum()
    windows = int(ends[-1]) // CONTEXT
    at = np.arange(windows)[:, None] * CONTEXT + places
    found = pieces[np.searchsorted(ends, at, side="right")]
    mean: Float64Array = found.mean(axis=0).reshape(PARTS, -1).mean(axis=1)
    return mean


def dropped(lengths: Int64Array) -> Int64Array:
    """Pieces where what a window has no room for is left out."""
    pieces, room = [], CONTEXT
    for length in lengths.tolist():
        pieces.append(min(length, room))
        room = room - pieces[-1] or CONTEXT
    return np.array(pieces, np.int64)


def _share(lengths: Int64Array, bound: int) -> float:
    return float(lengths[lengths <= bound].sum() / lengths.sum())
