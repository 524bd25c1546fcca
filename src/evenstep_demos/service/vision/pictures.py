"""Sizes of pictures and texts beside them, as sources on disk: made up, or from Parquet files.

Made-up sources are drawn from `KINDS`: the logarithms of a picture's root area, of the proportion
of its sides and of the bytes of a text are normal. Kinds differ as those of a real mixture do:
captions are short beside large photographs, and pages of text have no picture at all.

Each ``<image>`` in the text of a Parquet file stands for a picture; it makes one sample with the
text up to the next, and the text before the first is a sample without a picture. Text beyond the
length limit of a sample is cut off, and counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

from evenstep_demos.service.encode import pieces_of
from evenstep_demos.service.options import ServiceDemoOptions
from evenstep_demos.service.stored import StoredSources, stored_or_none, write_sources
from evenstep_demos.service.texts import parquet_rows

Progress = Callable[[int, int], None]

_MARK = "<image>"
_WORDS = "a picture of the small red house near green water with two people who walk and look"


@dataclass(frozen=True)
class Kind:
    """The distributions of a made-up source."""

    samples: int
    _: KW_ONLY
    side: float | None
    """Median root of a picture's area, in pixels; None for texts without pictures."""
    side_spread: float
    """Standard deviation of its logarithm."""
    text: float
    """Median bytes."""
    text_spread: float


KINDS = {
    "photographs with captions": Kind(500, side=420, side_spread=0.45, text=70, text_spread=0.5),
    "thumbnails with titles": Kind(400, side=110, side_spread=0.35, text=35, text_spread=0.5),
    "icons with names": Kind(600, side=40, side_spread=0.40, text=15, text_spread=0.4),
    "screenshots with steps": Kind(250, side=330, side_spread=0.35, text=350, text_spread=0.7),
    "drawings with remarks": Kind(250, side=240, side_spread=0.55, text=600, text_spread=0.8),
    "scanned pages": Kind(120, side=700, side_spread=0.20, text=900, text_spread=0.4),
    "questions and answers": Kind(700, side=None, side_spread=0, text=300, text_spread=0.9),
    "pages of text": Kind(380, side=None, side_spread=0, text=800, text_spread=0.6),
}
"""By name of the source."""

_PROPORTION = 0.35  # standard deviation of the logarithm of width over height


def picture_sources(options: ServiceDemoOptions, progress: Progress | None = None) -> StoredSources:
    """The sources of the vision demo; those of an earlier run if they were made of the same data.

    Args:
        progress: called with the number of sources written, and of all.

    Raises:
        ConfigurationError: the Parquet files lack a column, or hold nothing.
        ImportError: pyarrow is not installed.
    """
    files = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in options.data]
    made_of = repr(
        ("pictures", files or KINDS, options.column, options.source_column, options.sources,
         options.length_limit, options.seed)
    )  # fmt: skip
    folder = options.out / "pictures"
    found = stored_or_none(folder, made_of)
    if found is not None:
        return found
    facts = {"found": 0, "pictures": 0, "unusable": 0, "shortened": 0}
    if options.data:
        name = ", ".join(str(path) for path in options.data)
        rows = _of_files(options, facts)
    else:
        name = "made-up pictures and texts"
        rows = _made_up(options, facts)
    return write_sources(folder, _told(rows, progress), name=name, made_of=made_of, facts=facts)


def _told(
    rows: dict[str, list[dict[str, Any]]], progress: Progress | None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for number, item in enumerate(rows.items()):
        yield item
        if progress is not None:
            progress(number + 1, len(rows))


def _made_up(options: ServiceDemoOptions, facts: dict[str, int]) -> dict[str, list[dict[str, Any]]]:
    made: dict[str, list[dict[str, Any]]] = {}
    for name, kind in list(KINDS.items())[: options.sources]:
        draw = random.Random(f"{options.seed} {name}")
        rows = []
        for _ in range(kind.samples):
            length = int(draw.lognormvariate(math.log(kind.text), kind.text_spread))
            words = " ".join(draw.choices(_WORDS.split(), k=length // 4 + 2))
            size = None
            if kind.side is not None:
                side = draw.lognormvariate(math.log(kind.side), kind.side_spread)
                proportion = math.sqrt(draw.lognormvariate(0, _PROPORTION))
                size = [max(1, round(side * proportion)), max(1, round(side / proportion))]
            text = words[: max(2, min(length, options.length_limit))]
            rows.append({"text": text, "size": size, "seed": draw.getrandbits(32)})
        facts["found"] += len(rows)
        facts["pictures"] += sum(row["size"] is not None for row in rows)
        made[name] = rows
    return made


def _of_files(
    options: ServiceDemoOptions, facts: dict[str, int]
) -> dict[str, list[dict[str, Any]]]:
    columns = (options.column, "image_w", "image_h")
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in parquet_rows(options.data, columns, options.source_column):
        facts["found"] += 1
        sizes = list(zip(row["image_w"] or [], row["image_h"] or []))
        parts = samples_of(row[options.column] or "", sizes)
        draw = random.Random(f"{options.seed} {row['source']} {facts['found']}")
        usable = [
            {
                "text": pieces_of(text, options.length_limit)[0],
                "size": size,
                "seed": draw.getrandbits(32),
            }
            for text, size in parts
            if len(text) >= 2
        ]
        facts["shortened"] += sum(len(t.encode()) > options.length_limit for t, _ in parts)
        facts["unusable"] += len(parts) - len(usable)
        facts["pictures"] += sum(each["size"] is not None for each in usable)
        groups.setdefault(row["source"], []).extend(usable)
    ranked = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return dict(ranked[: options.sources])


def samples_of(text: str, sizes: list[tuple[int, int]]) -> list[tuple[str, list[int] | None]]:
    """Splits a document into samples: texts, each with the size of the picture that it begins with,
    if any. Marks beyond the number of sizes stay in the text; pictures beyond the number of marks
    have an empty text."""
    before, *behind = text.split(_MARK, len(sizes))
    behind += [""] * (len(sizes) - len(behind))
    found = [(part.strip(), list(size)) for part, size in zip(behind, sizes)]
    return [(before.strip(), None), *found]
