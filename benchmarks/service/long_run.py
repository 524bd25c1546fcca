"""A long run of the service: does memory grow, do files stay open, does it slow?

The service runs in processes of this machine, and trainers take steps of a few small samples, so
that what is measured is the service. As trainers would, they ask for a common state every 1,000
steps, and the planner keeps its states in a store. Sources begin again when they end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.lib.endurance import Looks, Watcher
from benchmarks.lib.report import parser, show
from evenstep_demos.ranks import run_ranks

SOURCES, ROWS = 3, 20_000
SAMPLES, LONGEST, MAX_TOKENS = 4, 64, 256  # of a step, of a sample, of a rank
SAVE, TOGETHER = 1_000, 8
"""Steps between states, and between those at which trainers wait for each other."""
LOOKS = 200


def prepared(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"input_ids": np.arange(row["tokens"])}


def strategy(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP").balance("greedy").plan()


def write(folder: Path) -> list[Path]:
    paths = [folder / f"{source}.jsonl" for source in range(SOURCES)]
    for path in paths:
        rows = ({"tokens": 1 + row * 37 % LONGEST} for row in range(ROWS))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


def train(
    send: Callable[[Any], None], steps: int, address: str, folder: Path, watcher: Watcher
) -> None:
    import torch.distributed as dist

    import evenstep.service as es

    rank, every = dist.get_rank(), steps // LOOKS
    with es.Client(address, "long-run", rank) as client:
        for _ in client:
            done = client.step
            if done % TOGETHER == 0:
                dist.barrier()
            if done % SAVE == 0:
                (folder / f"{rank}.json").write_text(json.dumps(client.common_state()))
            if done % every == every // 2 and rank == 0:
                send(watcher.look(done))
            if done == steps:
                break


def role(process: psutil.Process, depth: int) -> str:
    command = " ".join(process.cmdline())
    if "resource_tracker" in command:
        return ""
    if depth:
        return "trainers" if "spawn_main" in command else "loaders"
    return "planner, constructor, registry"


def main() -> None:
    import evenstep.service as es

    example = "python -m benchmarks.service.long_run --steps 1000000"
    arguments = parser(__doc__ or "", example, repeats=1)
    arguments.add_argument("--steps", type=int, default=100_000)
    arguments.add_argument("--trainers", type=int, default=2, help="ranks")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as temporary:
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        watcher, looks = Watcher(Path(temporary), role), Looks()
        job = es.Job(
            sources=[es.Source(p.stem, str(p), transform=prepared) for p in write(Path(kept))],
            mesh=es.Mesh(DP=options.trainers),
            strategy=strategy,
            max_tokens=MAX_TOKENS,
            draws=es.DrawOptions(samples_per_step=SAMPLES),
        )
        with (
            suppress(KeyboardInterrupt),  # shows what there is
            es.start(
                job, backend="processes", loaders=1, name="long-run", store=f"{kept}/store"
            ) as service,
        ):
            given = (options.steps, service.address, Path(kept), watcher)
            run_ranks(train, options.trainers, given, looks.take)
        show(*looks.tables(), as_json=options.json)
        print(f"files left: {watcher.left()}", file=sys.stderr)


if __name__ == "__main__":
    # From a module that every process can import: what a job holds is sent to its roles.
    from benchmarks.service import long_run as this

    this.main()
