"""``evenstep demo-service`` from beginning to end, in the parent process."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

import evenstep.service as es
from evenstep.cli.output import note, print_json, progress_bar
from evenstep.strategy.sample_table import SampleId
from evenstep.tools.report.steps_plot import plot_steps
from evenstep_demos.ranks import run_ranks
from evenstep_demos.service.delivery import check_delivery, check_encoded
from evenstep_demos.service.options import RANKS, ServiceDemoOptions
from evenstep_demos.service.result import ServedRun, ServiceDemoResult, plot_sources
from evenstep_demos.service.sources import text_sources
from evenstep_demos.service.strategies import TEXT_RUNS, text_job, tokens_of
from evenstep_demos.service.trainer import train
from evenstep_demos.service.vision.pictures import picture_sources
from evenstep_demos.service.vision.strategies import VISION_RUNS, pictured, vision_job

_STORE = 256_000_000  # bytes of Ray's object store: a few steps of small batches


def run_demo(options: ServiceDemoOptions, *, as_json: bool) -> None:
    """Trains once for each strategy, checks what was delivered, prints the result, and writes
    ``step_times.png``, ``sources.png`` and ``result.json``.

    Raises:
        RankFailedError: a rank failed; no process is left.
        EvenstepError: a service could not be started.
        InvariantError: a sample was lost, doubled or damaged.
        ImportError: something of ``evenstep[demo,service]`` is not installed.
    """
    begin = time.perf_counter()
    # Ray's own handler aborts the process, so nothing would be closed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Ray sends no usage reports, and does not print errors that ranks raise anyway.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    with progress_bar("writing sources") as progress:
        stored = picture_sources(options) if options.vision else text_sources(options, progress)
    smallest, largest = min(stored.samples.values()), max(stored.samples.values())
    facts = "".join(f", {count:,} {fact}" for fact, count in stored.facts.items())
    note(
        f"{stored.name}: {len(stored.samples):,} sources of {smallest:,} to {largest:,} samples"
        f"{facts}"
    )
    job, transform = (vision_job, pictured) if options.vision else (text_job, tokens_of)

    def tokens(sample: SampleId) -> npt.NDArray[np.integer]:
        found: npt.NDArray[np.integer] = transform(stored.row(sample))["input_ids"]
        return found

    runs, checked = {}, {}
    for name in VISION_RUNS if options.vision else TEXT_RUNS:
        note(f"{name}: starting Ray, its service, and {RANKS} ranks that train")
        runs[name] = served = _serve(job(stored, options, name), options, name)
        if options.vision:
            check_encoded(served.plans, served.records)
        checked[name] = check_delivery(served.plans, served.records, tokens)
    note("checked the samples delivered against plans and stored samples: they agree")
    ranks, sources = options.out / "step_times.png", options.out / "sources.png"
    result = ServiceDemoResult(
        options=options,
        stored=stored,
        runs=runs,
        checked=checked,
        pictures=[str(ranks), str(sources)],
        seconds=time.perf_counter() - begin,
    )
    plot_steps(result.panels(), ranks, title="Processor seconds of every rank in every step")
    plot_sources(result.draws(), sources, title="Samples drawn from each source")
    values = result.as_dict()
    (options.out / "result.json").write_text(json.dumps(values, indent=1) + "\n")
    if as_json:
        print_json(values)
    else:
        print(result.table())
    note(f"pictures: {ranks}, {sources}\nfigures: {options.out}/result.json")


def _serve(job: es.Job, options: ServiceDemoOptions, name: str) -> ServedRun:
    """Starts Ray and a service on it, trains on all ranks, and ends both."""
    ray: dict[str, Any] = {
        "num_cpus": max(2, os.cpu_count() or 2),
        "object_store_memory": _STORE,
    }
    with es.start(
        job,
        name=name,
        loaders=options.loaders,
        constructors=1,  # constructors import torch, and so take long to start
        ray=es.RayOptions(address="local", init=ray),
    ) as service:
        records = run_ranks(train, RANKS, (options, service.address, name), note)
        plans = [service.plan(step) for step in range(options.steps)]
    kept = [plan for plan in plans if plan is not None]  # all are, by the job's `plans_kept`
    return ServedRun(plans=kept, records=dict(enumerate(records)))
