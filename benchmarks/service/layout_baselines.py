"""What planned layouts of loaders are compared with.

`three_steps` is the auto-partitioning of the OVERLORD paper (section 5.1). (1) A source whose
memory exceeds a loader's is cut into shards that do not. (2) In ascending order of latency, sources
fill one loader after the other up to its memory. (3) A loader gets as many workers as bring the
latency of its sources below that of a step. The rule asks neither what workers themselves take nor
how much a loader has to do beside them; the layout says what is short.

`fewest_loaders` is a number of loaders below which no layout keeps the limits.
"""

from __future__ import annotations

import math

import numpy as np

from evenstep.strategy.loaders import LoaderLayout, LoadModel
from evenstep.strategy.loaders.load_model import MOST_PARTS, Piece

_SLACK = 1e-6  # for rounding, so that the bound holds


def three_steps(model: LoadModel) -> LoaderLayout:
    """The paper's layout. The latency of a loader is what a step draws of its sources times their
    seconds, at the time at which that is most; its memory is that of files and buffers."""
    room = model.limits.memory
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


def fewest_loaders(model: LoadModel) -> int:
    """The largest of several bounds: by time, by memory, by both together, and by sources of which
    no two fit one loader. Sources that fit no loader whatever their parts are left out."""
    limits = model.limits
    parts = [model.fewest_parts(source) for source in range(len(model.sources))]
    pieces = [Piece(s, n) for s, n in enumerate(parts) if n is not None for _ in range(n)]
    if not pieces:
        return 0
    vectors = model.vectors(pieces)
    held, transforms, buffers = vectors[:, :3].T
    own, _, prepare = vectors[:, 3:].reshape(len(pieces), 3, -1).sum(axis=0)
    cap = limits.seconds * (1 + _SLACK)
    bytes_needed = float((held + transforms + buffers).sum())
    room = limits.memory * (1 + _SLACK)
    count = max(1, math.ceil(float(own.max()) / cap - _SLACK))
    while True:
        # Loaders without workers prepare for `cap` seconds at most, as each worker does.
        busy = math.ceil(float((own + prepare).max()) / cap - _SLACK)
        workers = max(busy - count, 0)
        enough = workers <= count * limits.workers
        if enough and bytes_needed + (count + workers) * model.process_bytes <= count * room:
            break
        count += 1
        if count >= len(pieces):
            return len(pieces)
    return max(count, _apart(model, vectors))


def _apart(model: LoadModel, vectors: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> int:
    """Pieces that each need a loader of their own: of the largest, those of which no two fit
    together. Less is needed for fewer pieces, so it is enough to look at the two smallest."""
    limits = model.limits
    memory = model.process_bytes + vectors[:, :3].sum(axis=1)
    times = (vectors.shape[1] - 3) // 3
    own = vectors[:, 3 : 3 + times]  # [pieces, times]
    room, cap = limits.memory * (1 + _SLACK), limits.seconds * (1 + _SLACK)
    alone = [int((2 * memory - model.process_bytes > room).sum())]
    alone += [int((2 * each > cap).sum()) for each in own.T]
    return max(alone)
