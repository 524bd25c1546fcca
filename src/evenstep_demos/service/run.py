"""The demo from prepared sources to its result, in the parent process."""

from __future__ import annotations

import json
import time
from typing import Any

from evenstep.tools.report.steps_plot import plot_steps
from evenstep_demos.service.figures import draws_of, measure
from evenstep_demos.service.messages import Ready, Took
from evenstep_demos.service.options import RANKS
from evenstep_demos.service.result import ServiceDemoResult
from evenstep_demos.service.serving import ServedRun, serve_runs
from evenstep_demos.service.settings import Setting
from evenstep_demos.service.sources_plot import plot_sources
from evenstep_demos.service.stored import StoredSources
from evenstep_demos.text.messages import RunProgress
from evenstep_demos.text.progress import Display


def run_demo(setting: Setting, display: Display) -> ServiceDemoResult:
    """Trains once for each strategy, checks what was delivered, and writes ``step_times.png``,
    ``sources.png`` and ``result.json``.

    Raises:
        RankFailedError: a rank failed; no process is left.
        EvenstepError: a service could not be started.
        InvariantError: a sample was lost, doubled or damaged.
        ImportError: something of ``evenstep[demo,service]`` is not installed.
    """
    begin, options = time.perf_counter(), setting.options
    display.note(_describe(setting.stored))
    display.note(f"starting Ray, and {RANKS} ranks that train")

    def receive(message: Any) -> None:
        if isinstance(message, Ready):
            display.note(f"{message.run}: starting its service")
        elif isinstance(message, Took):
            display.step(
                RunProgress(
                    run=message.run,
                    done=message.step + 1,
                    total=options.step_count,
                    step=message.step + 1,
                    loss=message.loss,
                )
            )

    served = serve_runs(
        setting.jobs,
        setting.trainer,
        (options,),
        receive,
        steps=options.step_count,
        loaders=options.loaders,
    )
    checked = {name: setting.check(run) for name, run in served.items()}
    display.note("checked the samples delivered against plans and stored samples: they agree")
    result = ServiceDemoResult(
        options=options,
        stored=setting.stored,
        runs={
            name: measure(run.plans, run.records, setting.costs(run))
            for name, run in served.items()
        },
        checked=checked,
        draws=draws_of(list(served.values())[-1].plans),
        same_samples=_same(list(served.values())),
        pictures=(options.out / "step_times.png", options.out / "sources.png"),
        seconds=time.perf_counter() - begin,
    )
    ranks, sources = result.pictures
    plot_steps(result.panels(), ranks, title="Processor seconds of every rank in every step")
    plot_sources(result.draws, sources, title="Samples drawn from each source")
    (options.out / "result.json").write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    return result


def _describe(stored: StoredSources) -> str:
    facts = stored.facts
    smallest, largest = min(stored.samples.values()), max(stored.samples.values())
    more = "".join(f", {count:,} {name.replace('_', ' ')}" for name, count in facts.items())
    return (
        f"{stored.name}: {len(stored.samples):,} sources of {smallest:,} to {largest:,} samples"
        f"{more}"
    )


def _same(runs: list[ServedRun]) -> bool:
    """Whether all trained on the same samples in each step."""
    placed = [
        [
            {
                (int(s), int(p))
                for s, p in zip(
                    plan.samples.source[plan.assignment.placed],
                    plan.samples.position[plan.assignment.placed],
                )
            }
            for plan in run.plans
        ]
        for run in runs
    ]
    return all(each == placed[0] for each in placed)
