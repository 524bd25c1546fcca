"""Both runs of a task, from the start of the ranks to the picture, in the parent process."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from evenstep.errors import InvariantError
from evenstep.tools.report.steps_plot import plot_steps
from evenstep_demos.text.budget import Choice
from evenstep_demos.text.figures import measure, one_after_the_other
from evenstep_demos.text.job import RUNS, job
from evenstep_demos.text.messages import Chosen, Message, RunProgress, TextRunFinished
from evenstep_demos.text.options import TrainingOptions
from evenstep_demos.text.prepared_text import describe_lengths
from evenstep_demos.text.progress import Display
from evenstep_demos.text.ranks import run_ranks
from evenstep_demos.text.result import DemoResult, Repeats
from evenstep_demos.text.task import Task


def train_both(
    options: TrainingOptions,
    task: Task,
    display: Display,
    *,
    begin: float,
    facts: Mapping[str, Any],
    samples: str,
) -> DemoResult:
    """Trains, and writes ``step_times.png`` and ``result.json``.

    Args:
        begin: when the demo began, by `time.perf_counter`.
        facts: about the data, for the result.
        samples: what the samples are called.

    Raises:
        RankFailedError: a rank failed; no process is left.
        ImportError: something of ``evenstep[demo]`` is not installed.
    """
    display.note(f"starting {options.world_size} ranks and measuring their speed")
    chosen: list[Chosen] = []
    finished: dict[str, list[TextRunFinished]] = {run: [] for run in RUNS}

    def receive(message: Message) -> None:
        if isinstance(message, RunProgress):
            display.step(message)
        elif isinstance(message, Chosen):
            chosen.append(message)
            display.note(_announce(message.choice, task, options, samples))
        elif isinstance(message, TextRunFinished):
            finished[message.run].append(message)

    run_ranks(job, options.world_size, (options, task), receive)
    count = chosen[0].choice.samples
    for run, repeats in finished.items():
        # The demo promises that all runs train on the same samples, each once.
        if {sum(sum(record.samples) for record in one.records) for one in repeats} != {count}:
            raise InvariantError(f"{run} did not train on {count} samples in every repeat")
    fixed, even = (
        Repeats(
            whole=measure(
                one_after_the_other([one.records for one in repeats]),
                float(np.mean([one.held_out_loss for one in repeats])),
            ),
            first=measure(repeats[0].records, repeats[0].held_out_loss),
            held_out_losses=tuple(one.held_out_loss for one in repeats),
        )
        for repeats in finished.values()
    )
    result = DemoResult(
        options=options,
        samples=samples,
        corpus=facts,
        lengths=task.lengths[:count],
        choice=chosen[0].choice,
        seconds_per_token=chosen[0].seconds_per_token,
        initial_loss=chosen[0].initial_loss,
        fixed=fixed,
        even=even,
        picture=options.out / "step_times.png",
        seconds=time.perf_counter() - begin,
    )
    title = "Processor time of every rank in every step of the first repeat"
    plot_steps(result.panels(), result.picture, title=title)
    (options.out / "result.json").write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    return result


def _announce(choice: Choice, task: Task, options: TrainingOptions, samples: str) -> str:
    lengths = describe_lengths(task.lengths[: choice.samples])
    return (
        f"training on {choice.samples:,} of {len(task.lengths):,} {samples}, their lengths "
        f"median {lengths['median']:,.0f}, mean {lengths['mean']:,.0f}, 95th percentile "
        f"{lengths['p95']:,.0f}, longest {lengths['max']:,.0f} tokens, coefficient of variation "
        f"{lengths['cv']:.2f}\n"
        f"{options.repeats} times each, fixed batches of {choice.batch_size} and "
        f"evenstep.Even(max_tokens={choice.max_tokens:,}), {options.accumulate} steps to an update"
    )
