"""``evenstep demo-service`` from beginning to end, in the parent process."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import evenstep.service as es
from evenstep.cli.output import note, print_json, progress_bar
from evenstep.errors import ConfigurationError
from evenstep.strategy import LoadingPlan
from evenstep.strategy.sample_table import SampleId
from evenstep.tools.report.steps_plot import StepPanel, plot_steps
from evenstep_demos.ranks import run_ranks
from evenstep_demos.service.delivery import Records, check_delivery
from evenstep_demos.service.result import figures, table_of
from evenstep_demos.service.sources import write_sources
from evenstep_demos.service.strategies import RANKS, STRATEGIES, job_of, tokens_of
from evenstep_demos.service.trainer import train

_STORE = 256_000_000  # bytes of Ray's object store: a few steps of small batches


def run_demo(*, sources: int, steps: int, seed: int, out: Path, as_json: bool) -> None:
    """Trains once for each strategy, checks what was delivered, prints the result, and writes
    ``step_times.png`` and ``result.json``.

    Raises:
        RankFailedError: a rank failed; no process is left.
        EvenstepError: a service could not be started.
        InvariantError: a sample was lost, doubled or damaged.
        ImportError: something of ``evenstep[demo,service]`` is not installed.
    """
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"out={out} is a file; name a folder")
    # Ray's own handler aborts the process, so nothing would be closed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Ray sends no usage reports, and does not print errors that ranks raise anyway.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    with progress_bar("writing sources") as progress:
        stored = write_sources(out / "sources", sources, seed, progress)
    samples = sum(stored.samples.values())
    note(f"{samples:,} blocks of this interpreter's Python code in {len(stored.samples):,} sources")

    def tokens(sample: SampleId) -> npt.NDArray[np.integer]:
        found: npt.NDArray[np.integer] = tokens_of(stored.row(sample))["input_ids"]
        return found

    runs: dict[str, dict[str, Any]] = {}
    checked = 0
    for name in STRATEGIES:
        note(f"{name}: starting Ray, its service, and {RANKS} ranks that train")
        plans, records = _serve(job_of(stored, name, steps=steps, seed=seed), name, steps, seed)
        checked = check_delivery(plans, records, tokens)
        runs[name] = figures(plans, records)
    note("checked the samples delivered against plans and stored samples: they agree")
    picture = out / "step_times.png"
    panels = [
        StepPanel(
            title=f"{name}: imbalance {found['measured']:.2f} measured, {found['planned']:.2f} "
            "planned",
            seconds=np.array(found["by_rank"]),
        )
        for name, found in runs.items()
    ]
    plot_steps(panels, picture, title="Processor seconds of every rank in every step")
    result = {
        "data": {"sources": len(stored.samples), "samples": samples},
        "steps": steps,
        "seed": seed,
        "runs": runs,
        "tokens_checked": checked,
        "picture": str(picture),
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        print_json(result)
    else:
        print(table_of(result))
    note(f"picture: {picture}\nfigures: {out / 'result.json'}")


def _serve(job: es.Job, name: str, steps: int, seed: int) -> tuple[list[LoadingPlan], Records]:
    """Starts Ray and a service on it, trains on all ranks, and ends both."""
    ray: dict[str, Any] = {
        "num_cpus": max(2, os.cpu_count() or 2),
        "object_store_memory": _STORE,
    }
    with es.start(
        job,
        name=name,
        loaders=2,
        constructors=1,  # constructors import torch, and so take long to start
        ray=es.RayOptions(address="local", init=ray),
    ) as service:
        records = run_ranks(train, RANKS, (service.address, name, steps, seed), note)
        plans = [service.plan(step) for step in range(steps)]
    # All plans are kept, by the job's `plans_kept`.
    return [plan for plan in plans if plan is not None], records
