"""`three_steps`: the auto-partitioning of the OVERLORD paper (section 5.1), to compare with.

(1) A source whose memory exceeds a loader's is cut into shards that do not. (2) In ascending order
of latency, sources fill one loader after the other up to its memory. (3) A loader gets as many
workers as bring the latency of its sources below that of a step. The rule asks neither what workers
themselves take nor how much a loader has to do beside them; the layout says what is short.
"""

from __future__ import annotations

import numpy as np

from evenstep.strategy.loaders.load_model import MOST_PARTS, LoadModel, Piece
from evenstep.strategy.loaders.loader_layout import LoaderLayout


def three_steps(model: LoadModel, room: float | None = None) -> LoaderLayout:
    """The paper's layout. The latency of a loader is what a step draws of its sources times their
    seconds, at the time at which that is most; its memory is that of files and buffers.

    Args:
        room: bytes that the sources of a loader may take; None is all of its memory.
    """
    room = model.limits.memory if room is None else room
    shared = model.buffers + model.staged  # what shards divide
    kept = model.file_bytes + model.transform_bytes  # what each has
    pieces = []
    for source in range(len(model.sources)):
        free = room - kept[source]
        parts = int(np.ceil(shared[source] / free).clip(1, MOST_PARTS)) if free > 0 else 1
        pieces += [Piece(source, parts)] * parts
    latency = model.prepare + model.read + model.send
    pieces.sort(key=lambda piece: (latency[piece.source], piece))
    groups: list[list[Piece]] = []
    filled = np.inf
    for piece in pieces:
        size = float(kept[piece.source] + shared[piece.source] / piece.parts)
        if filled + size > room:
            groups.append([])
            filled = 0.0
        groups[-1].append(piece)
        filled += size
    return LoaderLayout.of(model, groups)
