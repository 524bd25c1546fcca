"""Packing documents into windows: evenstep's best-fit decreasing beside other libraries' packers.

100,000 documents, lognormal, of 1,024 tokens in the middle, with sigma 1.4, from 16 to 131,072, are
packed into windows of 131,072 tokens, and, cut to it, of 8,192. All packers get the same documents,
in turn, and what they made is checked: every document in one window, no window over its size.

    evenstep              `best_fit_decreasing`
    TRL                   best-fit decreasing over all documents at once
    TRL, as called        the same over 1,000 documents at a time, the default of `pack_dataset`
    binpacking, in 1,000  `to_constant_volume`, in lists of 1,000, as its time grows with documents
                          times windows

The others pack lengths. TRL packs tokens, which it copies several times; so here a token is a byte,
and there are two times: of everything, and without Arrow's functions that copy. What it runs on
each batch of `pack_dataset(..., "bfd")` is called directly. Times are those of processors, which
other work on the machine changes less.

A package that is not installed is left out: pip install 'evenstep[bench]' has them all.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.lib.report import Spread, parser, print_json, progress
from evenstep.arrays import Int64Array
from evenstep.plan.partition.best_fit import best_fit_decreasing
from evenstep.tools.report import text_table

CAPS = (131_072, 8_192)
LONGEST = 131_072
WINDOW = 1_000


@dataclass(frozen=True)
class Packed:
    seconds: float
    """Of processors, for packing."""
    loads: Int64Array
    """[windows] tokens of each."""
    sizes: Int64Array
    """[windows] documents in each."""
    with_tokens: float | None = None
    """Seconds with what copies tokens."""


Pack = Callable[[Int64Array, int], Packed]


def packers() -> dict[str, Pack]:
    result: dict[str, Pack] = {"evenstep": ours}
    if find_spec("trl") and find_spec("datasets"):
        result["TRL"] = lambda lengths, cap: trl(lengths, cap, len(lengths))
        result["TRL, as called"] = lambda lengths, cap: trl(lengths, cap, WINDOW)
    if find_spec("binpacking"):
        result["binpacking, in 1,000"] = binpacking
    return result


def ours(lengths: Int64Array, cap: int) -> Packed:
    begin = time.process_time()
    groups = best_fit_decreasing(lengths, cap)
    seconds = time.process_time() - begin
    loads = np.add.reduceat(lengths[groups.members], groups.offsets[:-1])
    assert len(np.unique(groups.members)) == len(lengths)
    return Packed(seconds, loads, groups.sizes)


class Timed:
    """A module whose functions are timed."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.module, name)

        def timed(*args: Any, **options: Any) -> Any:
            begin = time.process_time()
            try:
                return function(*args, **options)
            finally:
                self.seconds += time.process_time() - begin

        return timed


def trl(lengths: Int64Array, cap: int, window: int) -> Packed:
    import pyarrow as arrow
    from trl import data_utils

    tables = []
    for begin in range(0, len(lengths), window):
        part = lengths[begin : begin + window]
        tokens = arrow.array(np.zeros(int(part.sum()), np.int8))
        offsets = arrow.array(np.append(0, part.cumsum()))
        tables.append(arrow.table({"input_ids": arrow.LargeListArray.from_arrays(offsets, tokens)}))
    loads, sizes = [], []
    compute = Timed(data_utils.pc)
    spent = 0.0
    with patch.object(data_utils, "pc", compute):
        for table in tables:
            begin_at = time.process_time()
            packed = data_utils._pack_bfd(table, cap)
            spent += time.process_time() - begin_at
            loads.append(np.diff(packed["input_ids"].chunk(0).offsets.to_numpy()))
            sizes.append(np.diff(packed["seq_lengths"].chunk(0).offsets.to_numpy()))
            del packed
    return Packed(
        spent - compute.seconds, np.concatenate(loads), np.concatenate(sizes), with_tokens=spent
    )


def binpacking(lengths: Int64Array, cap: int) -> Packed:
    from binpacking import to_constant_volume

    bins = []
    begin = time.process_time()
    for first in range(0, len(lengths), WINDOW):
        part = lengths[first : first + WINDOW].tolist()
        bins += to_constant_volume(list(enumerate(part, first)), cap, weight_pos=1)
    seconds = time.process_time() - begin
    assert len({document for made in bins for document, _ in made}) == len(lengths)
    loads = [sum(length for _, length in made) for made in bins]
    return Packed(seconds, np.array(loads), np.array([len(made) for made in bins]))


def documents(count: int, seed: int) -> Int64Array:
    lengths = np.exp(np.random.default_rng(seed).normal(np.log(1024), 1.4, count))
    return lengths.astype(np.int64).clip(16, LONGEST)


def fewest(lengths: Int64Array, cap: int) -> int:
    """Windows that no packing can do with less than."""
    return max(-(-int(lengths.sum()) // cap), int((2 * lengths > cap).sum()))


def measure(count: int, cap: int, repeats: int, seed: int) -> list[dict[str, Any]]:
    lengths = np.minimum(documents(count, seed), cap)
    runs: dict[str, list[Packed]] = {name: [] for name in packers()}
    for repeat in range(repeats):
        for name, pack in packers().items():
            progress(f"{cap:,}: {name}, {repeat + 1} of {repeats}")
            if name == "evenstep" and not repeat:
                pack(lengths, cap)  # compiles
            packed = pack(lengths, cap)
            if packed.loads.sum() != lengths.sum() or packed.sizes.sum() != count:
                sys.exit(f"{name} lost documents")
            if packed.loads.max() > cap:
                sys.exit(f"{name} made a window of {packed.loads.max():,} tokens")
            runs[name].append(packed)
    bound = fewest(lengths, cap)
    fastest = np.median([packed.seconds for packed in next(iter(runs.values()))])
    rows = []
    for name, made in runs.items():
        seconds = Spread.of([1e3 * packed.seconds for packed in made])
        whole = [1e3 * packed.with_tokens for packed in made if packed.with_tokens is not None]
        rows.append(
            {
                "cap": cap,
                "by": name,
                "ms": seconds,
                "with_tokens_ms": Spread.of(whole) if whole else None,
                "ratio": seconds.median / (1e3 * float(fastest)),
                "windows": len(made[0].loads),
                "fewest": bound,
            }
        )
    return rows


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.planning.packing --repeats 1", repeats=3
    )
    arguments.add_argument("--documents", type=int, default=100_000)
    options = arguments.parse_args()
    rows = [
        row
        for cap in CAPS
        for row in measure(options.documents, cap, options.repeats, options.seed)
    ]
    progress("")
    if options.json:
        spreads = ("ms", "with_tokens_ms")
        plain = [
            {**row, **{name: row[name] and row[name].as_dict() for name in spreads}} for row in rows
        ]
        print_json({"documents": options.documents, "packers": plain})
        return
    print(
        text_table(
            ["window", "by", "CPU ms (10-90 %)", "ratio", "with tokens", "windows", "over fewest"],
            [
                [
                    f"{row['cap']:,}",
                    row["by"],
                    row["ms"].text(1),
                    f"{row['ratio']:,.1f}",
                    row["with_tokens_ms"].text(0) if row["with_tokens_ms"] else "",
                    f"{row['windows']:,}",
                    f"{row['windows'] / row['fewest'] - 1:+.2%}",
                ]
                for row in rows
            ],
            title=f"{options.documents:,} documents; ratio to the first row of each window",
        )
    )


if __name__ == "__main__":
    main()
