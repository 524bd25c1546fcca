"""Made-up sizes of pictures and texts beside them, as sources on disk.

The logarithms of a picture's root area, of the proportion of its sides and of the bytes of a text
are normal. Kinds differ as those of a real mixture do: captions are short beside large photographs,
and pages of text have no picture at all.
"""

from __future__ import annotations

import math
import random
from dataclasses import KW_ONLY, dataclass

from evenstep_demos.service.options import ServiceDemoOptions
from evenstep_demos.service.sources import Rows, StoredSources, write_sources

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


def picture_sources(options: ServiceDemoOptions) -> StoredSources:
    """Writes the sources of the vision demo."""
    made: dict[str, Rows] = {}
    for name, kind in list(KINDS.items())[: options.sources]:
        draw = random.Random(f"{options.seed} {name}")
        rows: Rows = []
        for _ in range(kind.samples):
            length = int(draw.lognormvariate(math.log(kind.text), kind.text_spread))
            words = " ".join(draw.choices(_WORDS.split(), k=length // 4 + 2))
            size = None
            if kind.side is not None:
                side = draw.lognormvariate(math.log(kind.side), kind.side_spread)
                proportion = math.sqrt(draw.lognormvariate(0, _PROPORTION))
                size = [max(1, round(side * proportion)), max(1, round(side / proportion))]
            text = words[: max(2, min(length, options.max_length))]
            rows.append({"text": text, "size": size, "seed": draw.getrandbits(32)})
        made[name] = rows
    facts = {"pictures": sum(row["size"] is not None for rows in made.values() for row in rows)}
    name = "made-up pictures and texts"
    return write_sources(options.out / "pictures", made.items(), name, facts)
