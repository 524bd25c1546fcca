"""``evenstep demo`` from beginning to end, in the parent process."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from evenstep.batch import PadCollator
from evenstep.cli.output import note, print_json
from evenstep.errors import ConfigurationError
from evenstep.tools.report.steps_plot import plot_steps
from evenstep_demos.models import PaddedGPT
from evenstep_demos.ranks import run_ranks
from evenstep_demos.text.budget import TrainingOptions
from evenstep_demos.text.corpus import read_parquet, read_standard_library
from evenstep_demos.text.prepared_text import END, TokenizedDocuments, describe_lengths, prepare
from evenstep_demos.text.result import DemoResult
from evenstep_demos.text.task import Task
from evenstep_demos.text.train import train_both

VOCABULARY = 1024


def run_demo(
    options: TrainingOptions,
    *,
    data: Path | None,
    column: str,
    max_length: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Reads, tokenizes and trains; see `compare`.

    Args:
        data: a Parquet file with one document a row; None takes the standard library.
        column: the column of `data` that holds the text.
        max_length: longer documents are left out. Two thirds of the budget by default.

    Raises:
        ConfigurationError: the text cannot be used, or there is too little of it.
    """
    begin = time.perf_counter()
    limit = max_length or 2 * options.max_tokens // 3
    if limit > options.max_tokens:
        raise ConfigurationError(
            f"max_length={limit:,} is over max_tokens={options.max_tokens:,}, and a document must "
            "fit the budget; lower the one or raise the other"
        )
    note("reading text and training a tokenizer on it")
    if data is None:
        corpus = read_standard_library(options.seed)
    else:
        corpus = read_parquet(data, column, options.seed)
    prepared = prepare(corpus, limit, VOCABULARY, ranks=options.world_size, samples=options.samples)
    facts = {
        "name": corpus.name,
        "found": corpus.found,
        "read": corpus.read,
        "unusable": corpus.unusable,
        "too_long": prepared.too_long,
        "to_train_on": len(prepared.documents),
        "held_out": len(prepared.held_out),
    }
    note(
        f"{corpus.name}: {corpus.found:,} documents, {corpus.read:,} read; left out: "
        f"{corpus.unusable:,} empty, unreadable or copies, {prepared.too_long:,} longer than "
        f"{limit:,} tokens; {len(prepared.held_out):,} held out for evaluation"
    )
    task = Task(
        training=TokenizedDocuments(prepared.documents, prepared.tokenizer),
        lengths=prepared.lengths,
        held_out=TokenizedDocuments(prepared.held_out, prepared.tokenizer),
        held_out_lengths=prepared.held_out_lengths,
        collate=PadCollator(pad_token_id=END),
        model=_model,
    )
    compare(options, task, begin=begin, facts=facts, samples="documents", out=out, as_json=as_json)


def _model(seed: int) -> PaddedGPT:
    torch.manual_seed(seed)
    return PaddedGPT(vocab_size=VOCABULARY, hidden_size=96, layers=1)


def compare(
    options: TrainingOptions,
    task: Task,
    *,
    begin: float,
    facts: Mapping[str, Any],
    samples: str,
    out: Path,
    as_json: bool,
) -> None:
    """Trains with fixed batches and with `Even`, prints the result, and writes ``step_times.png``
    and ``result.json``.

    Args:
        begin: when the demo began, by `time.perf_counter`.
        facts: about the data, for the result.
        samples: what the samples are called.
        out: the folder of both files.
        as_json: print a JSON object instead of a table.

    Raises:
        RankFailedError: a rank failed; no process is left.
        ImportError: something of ``evenstep[demo]`` is not installed.
    """
    out.mkdir(parents=True, exist_ok=True)
    lengths = describe_lengths(task.lengths)
    note(
        f"{len(task.lengths):,} {samples} to train on, their lengths median "
        f"{lengths['median']:,.0f}, mean {lengths['mean']:,.0f}, 95th percentile "
        f"{lengths['p95']:,.0f}, longest {lengths['max']:,.0f} tokens, coefficient of variation "
        f"{lengths['cv']:.2f}\nstarting {options.world_size} ranks and measuring their speed"
    )
    trained = run_ranks(train_both, options.world_size, (options, task), note)[0]
    result = DemoResult(
        options=options,
        samples=samples,
        corpus=facts,
        lengths=task.lengths[: trained.choice.samples],
        trained=trained,
        picture=str(out / "step_times.png"),
        seconds=time.perf_counter() - begin,
    )
    title = "Processor time of every rank in every step of the first repeat"
    plot_steps(result.panels(), out / "step_times.png", title=title)
    values = result.as_dict()
    (out / "result.json").write_text(json.dumps(values, indent=1) + "\n")
    if as_json:
        print_json(values)
    else:
        print(result.table())
    note(f"picture: {result.picture}\nfigures: {out / 'result.json'}")
