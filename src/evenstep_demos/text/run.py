"""The demo from beginning to end, in the parent process."""

from __future__ import annotations

import json
import time

import numpy as np

from evenstep.errors import InvariantError
from evenstep.tools.report.steps_plot import plot_steps
from evenstep_demos.text.corpus import Corpus, read_parquet, read_standard_library
from evenstep_demos.text.figures import measure, one_after_the_other
from evenstep_demos.text.job import RUNS, job
from evenstep_demos.text.messages import Chosen, Message, RunProgress, TextRunFinished
from evenstep_demos.text.options import DemoOptions
from evenstep_demos.text.prepared_text import PreparedText, describe_lengths, prepare
from evenstep_demos.text.progress import Display
from evenstep_demos.text.ranks import run_ranks
from evenstep_demos.text.result import DemoResult, Repeats


def run_demo(options: DemoOptions, display: Display) -> DemoResult:
    """Reads, tokenizes, trains, and writes ``step_times.png`` and ``result.json``.

    Raises:
        ConfigurationError: the text cannot be used, or there is too little of it.
        RankFailedError: a rank failed; no process is left.
        ImportError: something of ``evenstep[demo]`` is not installed.
    """
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    display.note("reading text and training a tokenizer on it")
    if options.data is None:
        corpus = read_standard_library(options.seed)
    else:
        corpus = read_parquet(options.data, options.column, options.seed)
    prepared = prepare(corpus, options)
    facts = _facts(corpus, prepared)
    display.note(_describe(facts, options))
    display.note(f"starting {options.world_size} ranks and measuring their speed")

    chosen: list[Chosen] = []
    finished: dict[str, list[TextRunFinished]] = {run: [] for run in RUNS}

    def receive(message: Message) -> None:
        if isinstance(message, RunProgress):
            display.step(message)
        elif isinstance(message, Chosen):
            chosen.append(message)
            display.note(_announce(message, prepared, options))
        elif isinstance(message, TextRunFinished):
            finished[message.run].append(message)

    run_ranks(job, options.world_size, (options, prepared), receive)
    samples = chosen[0].choice.samples
    for run, repeats in finished.items():
        # The demo promises that all runs train on the same samples, each once.
        if {sum(sum(record.samples) for record in one.records) for one in repeats} != {samples}:
            raise InvariantError(f"{run} did not train on {samples} samples in every repeat")
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
        corpus=facts,
        lengths=prepared.lengths[:samples],
        choice=chosen[0].choice,
        seconds_per_token=chosen[0].seconds_per_token,
        initial_loss=chosen[0].initial_loss,
        fixed=fixed,
        even=even,
        picture=options.out / "step_times.png",
        seconds=time.perf_counter() - begin,
    )
    title = "Compute time of every rank in every step of the first repeat"
    plot_steps(result.panels(), result.picture, title=title)
    (options.out / "result.json").write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    return result


def _facts(corpus: Corpus, prepared: PreparedText) -> dict[str, str | int]:
    return {
        "name": corpus.name,
        "found": corpus.found,
        "read": corpus.read,
        "unusable": corpus.unusable,
        "too_long": prepared.too_long,
        "to_train_on": len(prepared.documents),
        "held_out": len(prepared.held_out),
    }


def _describe(facts: dict[str, str | int], options: DemoOptions) -> str:
    return (
        f"{facts['name']}: {facts['found']:,} documents, {facts['read']:,} read; left out: "
        f"{facts['unusable']:,} empty, unreadable or copies, {facts['too_long']:,} longer than "
        f"{options.length_limit:,} tokens; {facts['held_out']:,} held out for evaluation"
    )


def _announce(message: Chosen, prepared: PreparedText, options: DemoOptions) -> str:
    choice = message.choice
    lengths = describe_lengths(prepared.lengths[: choice.samples])
    return (
        f"training on {choice.samples:,} of {len(prepared.documents):,} documents, their lengths "
        f"median {lengths['median']:,.0f}, mean {lengths['mean']:,.0f}, 95th percentile "
        f"{lengths['p95']:,.0f}, longest {lengths['max']:,.0f} tokens, coefficient of variation "
        f"{lengths['cv']:.2f}\n"
        f"{options.repeats} times each, fixed batches of {choice.batch_size} and "
        f"evenstep.Even(max_tokens={choice.max_tokens:,}), {options.accumulate} steps to an update"
    )
