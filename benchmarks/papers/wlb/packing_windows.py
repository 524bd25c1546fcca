"""Figures 6 and 16: held-out loss by the window over which documents are packed.

A small GPT is trained once for each way of packing and seed. For a seed all get the same stream of
documents, the same initial weights and the same number of updates; only which documents meet in a
step differs, and when. Documents are the blocks of source files, as blank lines divide them; as the
tail of their lengths reaches the context window, so do those of the paper.

Needs the folder with ``code_repos.parquet`` in EVENSTEP_DATA.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.learning.train import Recipe, mean_loss, one_thread, train
from benchmarks.lib.corpus import Tokens
from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.algorithm_1 import run_algorithm_1
from benchmarks.papers.wlb.packing_result import measure
from benchmarks.papers.wlb.packing_run import (
    ArrivingDocuments,
    Trained,
    run_evenstep,
    run_fixed_length,
)
from benchmarks.papers.wlb.thresholds import auto_thresholds
from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.packing import DocumentCost
from evenstep_demos.text.corpus import read_parquet
from evenstep_demos.text.prepared_text import load_tokenizer, train_tokenizer

CONTEXT = 2048
MICRO_BATCHES = 4
STEPS = 128
SEEDS = 3
VOCABULARY = 1024
HELD_OUT = 512
COST = DocumentCost(linear=24_576 * CONTEXT // 131_072)
"""As for Table 2, scaled to the window: a full window's attention is as much of its cost there."""
QUEUES = 2
BASE = "fixed-length, 1 global batch"
_BLANK_LINES = re.compile(r"\n{2,}(?=\S)")
_SHORTEST, _TOKENS = 8, 4_000_000

Pack = Callable[[ArrivingDocuments], Trained]


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks of source files as tokens, in random order; the first are held out."""

    tokens: Tokens
    held_out: Int64Array

    def stream(self, seed: int) -> Int64Array:
        """[documents] those that arrive: as many as fill all steps."""
        order = np.random.default_rng(seed).permutation(len(self.tokens) - HELD_OUT) + HELD_OUT
        total = STEPS * MICRO_BATCHES * CONTEXT
        return order[: int(np.searchsorted(self.tokens.lengths[order].cumsum(), total)) + 1]


def read_blocks(folder: Path) -> Blocks:
    path = folder / "code_repos.parquet"
    if not path.is_file():
        sys.exit(f"there is no {path}; EVENSTEP_DATA must name a folder with it")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    texts = read_parquet(path, "text", seed=0).documents
    blocks = [block for text in texts for block in _BLANK_LINES.split(text)]
    blocks = [blocks[i] for i in np.random.default_rng(0).permutation(len(blocks))]
    encoder = load_tokenizer(train_tokenizer(blocks[2 * HELD_OUT :], VOCABULARY))
    wanted = _TOKENS
    found: list[list[int]] = []
    while wanted > 0 and blocks:
        ids = encoder.encode(blocks.pop()).ids
        if len(ids) >= _SHORTEST:
            found.append(ids)
            wanted -= len(ids)
    tokens = Tokens.of(found)
    return Blocks(tokens=tokens, held_out=np.flatnonzero(tokens.lengths[:HELD_OUT] <= CONTEXT))


def packings(lengths: Int64Array) -> dict[str, Pack]:
    """Ways to pack a stream, by name.

    Args:
        lengths: [documents] a sample, from which thresholds of queues follow.
    """
    queues = auto_thresholds(
        np.minimum(lengths, CONTEXT), context=CONTEXT, queues=QUEUES, cost=COST
    )

    def literal(stream: ArrivingDocuments) -> Trained:
        return run_algorithm_1(stream, thresholds=queues, cost=COST)

    def fixed(batches: int) -> Pack:
        return lambda stream: run_fixed_length(stream, batches, cost=COST, end="carry")

    return {
        BASE: fixed(1),
        "fixed-length, 2 global batches": fixed(2),
        "fixed-length, 4 global batches": fixed(4),
        "fixed-length, 8 global batches": fixed(8),
        "WLB-LLM, Algorithm 1": literal,
        "evenstep": lambda s: run_evenstep(s, cost=COST, end="carry"),
    }


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run."""

    loss: float
    imbalance: float
    delay: float


def run_of(blocks: Blocks, pack: Pack, seed: int, recipe: Recipe) -> Run:
    drawn = blocks.stream(seed)
    arrivals = ArrivingDocuments.of(
        blocks.tokens.lengths[drawn], context=CONTEXT, micro_batches=MICRO_BATCHES
    )
    trained = pack(arrivals)
    samples, steps = samples_of(blocks.tokens, drawn, arrivals, trained)
    one_thread()
    model = recipe.model(seed)
    train(recipe, model, samples, steps)
    packing = measure(arrivals, trained, COST)
    return Run(
        loss=mean_loss(model, blocks.tokens, blocks.held_out),
        imbalance=packing.imbalance,
        delay=packing.token_delay_mean,
    )


def samples_of(
    tokens: Tokens, drawn: Int64Array, arrivals: ArrivingDocuments, trained: Trained
) -> tuple[Tokens, list[Int64Array]]:
    """What is trained on as samples, and those of each step. A row of `Trained` is one sample; the
    rows of a piece that a packer cut are consecutive parts of it. Rows of a single token, which
    predict nothing, are in no step."""
    order = np.argsort(trained.piece, kind="stable")
    piece, length = trained.piece[order], trained.length[order]
    before = length.cumsum() - length
    first = np.searchsorted(piece, piece)  # the piece's first row
    start = np.empty(len(order), np.int64)
    start[order] = tokens.offsets[drawn[arrivals.pieces.documents[piece]]]
    start[order] += arrivals.pieces.begins[piece] + before - before[first]
    places = np.arange(trained.length.sum()) + np.repeat(
        start - (trained.length.cumsum() - trained.length), trained.length
    )
    samples = Tokens(tokens.flat[places], np.append(0, trained.length.cumsum()))
    rows = np.flatnonzero(trained.length > 1)
    ends = np.bincount(trained.step[rows], minlength=STEPS).cumsum()
    rows = rows[np.argsort(trained.step[rows], kind="stable")]
    return samples, np.split(rows, ends[:-1])


def figures_6_16(seed: int) -> Outcome:
    """`SEEDS` seeds from `seed` on."""
    folder = os.environ.get("EVENSTEP_DATA")
    if folder is None:
        sys.exit("EVENSTEP_DATA must name a folder with code_repos.parquet, which it trains on")
    blocks, recipe = read_blocks(Path(folder)), Recipe(vocab_size=VOCABULARY)
    found: dict[str, list[Run]] = {}
    for number in range(seed, seed + SEEDS):
        for name, pack in packings(blocks.tokens.lengths).items():
            progress(f"seed {number}, {name}")
            found.setdefault(name, []).append(run_of(blocks, pack, number, recipe))
    progress("")
    base = np.array([run.loss for run in found[BASE]])
    rows = []
    above: dict[str, Float64Array] = {}
    for name, each in found.items():
        losses = np.array([run.loss for run in each])
        above[name] = 100 * (losses / base - 1)
        rows.append(
            [
                name,
                f"{losses.mean():.3f}",
                "" if name == BASE else spread(above[name]),
                f"{np.mean([run.imbalance for run in each]):.3f}",
                f"{np.mean([run.delay for run in each]):.2f}",
            ]
        )
    header = ["packing", "held-out loss", "above 1 global batch, %", "imbalance", "delay, steps"]
    eight, wlb = above["fixed-length, 8 global batches"], above["WLB-LLM, Algorithm 1"]
    return Outcome(
        [Table(header, rows, f"{len(base)} seeds, {STEPS} updates each")],
        "8 global batches: +1.6 %; WLB-LLM: none",
        f"{spread(eight)} %; {spread(wlb)} %",
    )


def spread(values: Float64Array) -> str:
    """Mean and its standard error."""
    return f"{values.mean():+.2f} ± {values.std(ddof=1) / len(values) ** 0.5:.2f}"
