"""Metadata of corpora, as a planner sees them, and the steps that a mixture draws."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import GroupShapes, TransformerCost
from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.rng import generator
from evenstep.plan.too_long import pieces_of
from evenstep.tools.simulate import sample_lengths
from evenstep.tools.simulate.lengths import open_parquet

Columns = Mapping[str, Int64Array]

DRAWN = 1 << 16
"""Samples in a pass of a source whose lengths are drawn from a distribution."""
ENCODER = "encoder"
"""Column with the encoder's cost of a sample, in units of `UNIT`. A separate column: attention
ends at the border of each image, so the cost does not follow from the sum of cells."""
UNIT = 1e9
PATCHES = 4
"""Patches of 14 x 14 pixels, which an encoder sees, in a cell of 28 x 28, which a backbone sees."""

# Table 1 of the paper; widths of feed-forward networks, which it leaves out, are those that make
# models of the size in the name.
LLAMA_12B = TransformerCost(
    layers=45, hidden_size=4608, heads=36, ffn_size=12_288, vocab_size=32_000
)
TMOE_25B = TransformerCost(
    layers=42, hidden_size=2048, heads=16, ffn_size=5888, vocab_size=32_000, experts=16, top_k=2
)
"""How many experts there are is not printed; 16 of this width make 25 B."""
MIXTRAL = TransformerCost(
    layers=32,
    hidden_size=4096,
    heads=32,
    kv_heads=8,
    ffn_size=14_336,
    vocab_size=32_000,
    experts=8,
    top_k=2,
)
VIT_1B = TransformerCost.vision(layers=39, hidden_size=1408, heads=16, ffn_size=6144)
VIT_2B = TransformerCost.vision(layers=48, hidden_size=1664, heads=16, ffn_size=8192)

FILES = {"chat_multi": 16_384, "gsm8k": 4096}
"""Text: name of the file, and tokens of a micro-batch."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Sources of a mixture. Every pass of a source has another order."""

    name: str
    context: int
    """Tokens that a micro-batch is to have; longer documents are in pieces."""
    weights: Mapping[str, float]
    columns: tuple[Columns, ...]
    """For each source, by modality, [samples] lengths in the order stored."""

    @property
    def modalities(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns[0] if name != ENCODER)

    def steps(self, count: int, tokens: int, seed: int) -> Iterator[SampleTable]:
        """Steps of as many samples as hold at most `tokens`."""
        mixture = Mixer(
            tuple(self.weights),
            self.weights,
            tokens_per_step=tokens,
            modalities=self.modalities,
            seed=seed,
        )
        metadata = _Shuffled(tuple(self.weights), self.columns, seed)
        for step in range(count):
            yield mixture.draw(step, metadata)


class _Shuffled:
    """The order of each source: pass after pass, each in another random order."""

    def __init__(self, names: tuple[str, ...], columns: Sequence[Columns], seed: int) -> None:
        self._names, self._columns, self._seed = names, columns, seed
        self._orders: dict[tuple[int, int], Int64Array] = {}

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        columns = self._columns[source]
        size = len(next(iter(columns.values())))
        places = np.arange(position, position + count, dtype=np.int64)
        passes, within = np.divmod(places, size)
        index = np.empty(count, np.int64)
        for number in np.unique(passes).tolist():
            here = passes == number
            index[here] = self._order(source, number, size)[within[here]]
        return SampleTable(
            sources=self._names,
            source=np.full(count, source, np.int32),
            position=places,
            shard=np.zeros(count, np.int32),
            index=index,
            lengths={name: column[index] for name, column in columns.items()},
        )

    def _order(self, source: int, number: int, size: int) -> Int64Array:
        key = source, number
        if key not in self._orders:
            self._orders[key] = generator(self._seed, source, number).permutation(size)
        return self._orders[key]


# Text


def named_text() -> list[Corpus]:
    """Corpora of the named distributions."""
    return [_drawn("pretrain-128k", 131_072)]


def _drawn(name: str, context: int) -> Corpus:
    lengths = pieces_of(sample_lengths(name, DRAWN), context, "split").lengths
    return Corpus(name=name, context=context, weights={name: 1.0}, columns=({"text": lengths},))


def text_of(folder: Path) -> list[Corpus]:
    """Corpora out of the files of `FILES` in a folder; says which are missing."""
    found = []
    for name, context in FILES.items():
        path = folder / f"{name}.parquet"
        if not path.is_file():
            print(f"skipped {name}: there is no {path}", file=sys.stderr)
            continue
        with open_parquet(path) as file:
            rows = file.read(columns=["source", "n_tokens"]).to_pydict()
        lengths = np.array(rows["n_tokens"], np.int64)
        columns = {
            source: {"text": pieces_of(lengths[here], context, "split").lengths}
            for source, here in _by_source(rows["source"])
        }
        found.append(
            Corpus(
                name=name,
                context=context,
                weights=_weights(columns),
                columns=tuple(columns.values()),
            )
        )
    return found


# Image and text


def captioned(context: int, most_cells: int, encoder: TransformerCost) -> Corpus:
    """Images and their captions, from five sources: `coyo-image` with `coyo-text`, which of both
    comes with which being left to chance. Images with more than `most_cells`, or too large for the
    context, are scaled down."""
    names = [f"part {k}" for k in range(5)]
    columns = []
    for number in range(len(names)):
        text = sample_lengths("coyo-text", DRAWN, 2 * number)
        cells = sample_lengths("coyo-image", DRAWN, 2 * number + 1)
        cells = np.minimum(cells, np.minimum(context - text, most_cells))
        costs = encoder_cost(cells, np.arange(DRAWN + 1), encoder)
        columns.append({"text": text, "image": cells, ENCODER: costs})
    return Corpus(
        name="coyo", context=context, weights=dict.fromkeys(names, 1.0), columns=tuple(columns)
    )


def encoder_cost(cells: Int64Array, bounds: Int64Array, encoder: TransformerCost) -> Int64Array:
    """[samples] in units of `UNIT`; the images of sample i are those from ``bounds[i]`` to
    ``bounds[i + 1]``."""
    patches = PATCHES * cells
    each = encoder(GroupShapes.measure(patches, np.arange(len(cells) + 1)), packed=True)
    running = np.append(0.0, each.cumsum())
    return np.rint(np.diff(running[bounds]) / UNIT).astype(np.int64)


def _weights(columns: Mapping[str, Columns]) -> dict[str, float]:
    """The square root of a source's samples, as mixtures commonly lift small sources."""
    return {name: len(of["text"]) ** 0.5 for name, of in columns.items()}


def _by_source(names: Sequence[str]) -> Iterator[tuple[str, Int64Array]]:
    """Each source and its rows."""
    of = np.array(names)
    for name in np.unique(of):
        yield str(name), np.flatnonzero(of == name)
