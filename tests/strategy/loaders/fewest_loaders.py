"""The fewest loaders that there can be, by integer programming: for small mixtures alone."""

from __future__ import annotations

import numpy as np
from scipy.optimize import LinearConstraint, milp

from evenstep.strategy.loaders import LoaderLayout, LoadModel

MIB = 1 << 20


def optimum(model: LoadModel, layout: LoaderLayout) -> int:
    """The fewest loaders for the same parts of sources, by HiGHS. A loader is in use, has workers
    or not, and how many; without workers the time of preparing is its own."""
    numbers = {name: k for k, name in enumerate(model.sources)}
    parts = [(numbers[s.source], s.parts) for loader in layout.loaders for s in loader.shares]
    n, most = len(parts), len(layout.loaders)
    limits, cap = model.limits, model.limits.seconds
    drawn = np.array([model.draws[0, k] / p for k, p in parts])
    source = np.array([k for k, _ in parts])
    own = drawn * (model.read + model.send)[source]
    handover, prepare = drawn * model.handover[source], drawn * model.prepare[source]
    memory = model.file_bytes[source] + np.array(
        [(model.staged + model.buffers)[k] / p for k, p in parts]
    )
    # Variables: x[piece, loader], used, helped, workers of each loader.
    size = n * most + 3 * most
    x = np.arange(n * most).reshape(n, most)
    used, helped, workers = (n * most + k * most + np.arange(most) for k in range(3))
    rows, low, high = [], [], []

    def add(terms, least, at_most) -> None:
        row = np.zeros(size)
        for index, factor in terms:
            row[index] += factor
        rows.append(row)
        low.append(least)
        high.append(at_most)

    large = float((own + handover + prepare).sum())
    for piece in range(n):
        add([(x[piece, j], 1.0) for j in range(most)], 1, 1)
    for j in range(most):
        mine = [(x[i, j], own[i] + prepare[i]) for i in range(n)]
        add([*mine, (helped[j], -large), (used[j], -cap)], -np.inf, 0)
        mine = [(x[i, j], own[i] + handover[i]) for i in range(n)]
        add([*mine, (used[j], -cap), (helped[j], large)], -np.inf, large)
        mine = [(x[i, j], prepare[i]) for i in range(n)]
        add([*mine, (workers[j], -cap), (helped[j], large)], -np.inf, large)
        mine = [(x[i, j], memory[i] / MIB) for i in range(n)]
        process = limits.process_bytes / MIB
        room = limits.memory / MIB - process
        add([*mine, (workers[j], process), (used[j], -room)], -np.inf, 0)
        add([(workers[j], 1), (helped[j], -limits.workers)], -np.inf, 0)
        if j:
            add([(used[j - 1], 1), (used[j], -1)], 0, np.inf)
    goal = np.zeros(size)
    goal[used] = 1
    upper = np.ones(size)
    upper[workers] = limits.workers
    found = milp(
        goal,
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=np.ones(size),
        bounds=(0, upper),
    )
    assert found.success, found.message
    return round(found.fun)
