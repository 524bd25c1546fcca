"""``evenstep demo`` from beginning to end, in the parent process."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

from evenstep.cli.output import note, print_json
from evenstep.tools.advise import Summary
from evenstep.tools.report.picture import plot_steps
from evenstep_demos.models import PaddedGPT
from evenstep_demos.ranks import run_ranks
from evenstep_demos.text.budget import ACCUMULATE, TrainingOptions, choose
from evenstep_demos.text.corpus import Corpus, read_parquet, read_standard_library
from evenstep_demos.text.prepared_text import prepare
from evenstep_demos.text.result import SHOWN, figures_of_both, panels_of, table_of
from evenstep_demos.text.train import REPEATS, train_both

VOCABULARY = 1024


def run_demo(
    options: TrainingOptions, *, data: Path | None, column: str, out: Path, as_json: bool
) -> None:
    """Trains with fixed batches and with `Even`, prints the result, and writes ``step_times.png``
    and ``result.json``.

    Args:
        data: a Parquet file with one document a row; None takes the standard library.
        column: the column of `data` that holds the text.
        out: the folder of both files.
        as_json: print a JSON object instead of a table.

    Raises:
        ConfigurationError: the text cannot be used, or there is too little of it.
        RankFailedError: a rank failed; no process is left.
        ImportError: something of ``evenstep[demo]`` is not installed.
    """
    note("reading text and training a tokenizer on it")
    seed = options.seed
    corpus = read_standard_library(seed) if data is None else read_parquet(data, column, seed)
    limit = 2 * options.max_tokens // 3
    task, too_long = prepare(corpus, limit, VOCABULARY, ranks=options.world_size, model=_model)
    facts = _corpus_facts(corpus, len(task.held_out_lengths), too_long, limit)
    out.mkdir(parents=True, exist_ok=True)
    ranks = options.world_size
    count = min(options.samples, len(task.lengths)) // ranks * ranks  # so that each is dealt once
    task = replace(task, training=Subset(task.training, range(count)), lengths=task.lengths[:count])
    lengths = asdict(Summary.of(task.lengths))
    choice = choose(task.lengths, options)
    note(
        f"{count:,} documents to train on, their lengths median {lengths['median']:,.0f}, mean "
        f"{lengths['mean']:,.0f}, 95th percentile {lengths['p95']:,.0f}, longest "
        f"{lengths['longest']:,.0f} tokens, coefficient of variation {lengths['cv']:.2f}\n"
        f"training on {ranks} ranks, {REPEATS} times each: fixed batches of {choice.batch_size}, "
        f"and evenstep.Even(max_tokens={choice.max_tokens:,}); {ACCUMULATE} steps to an update"
    )
    trained = run_ranks(train_both, ranks, options.seed, choice, task)[0]
    picture = out / "step_times.png"
    result = {
        "corpus": facts,
        "samples": "documents",
        "lengths": lengths,
        "options": {
            **asdict(options),
            "samples": count,
            "repeats": REPEATS,
            "accumulate": ACCUMULATE,
            "batch_size": choice.batch_size,
            "fitted_max_tokens": choice.max_tokens,
        },
        **figures_of_both(trained),
        "picture": str(picture),
    }
    title = f"Processor time of every rank in the first {SHOWN} steps"
    plot_steps(panels_of(trained, choice), picture, title=title)
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print_json(result) if as_json else print(table_of(result))
    note(f"picture: {picture}\nfigures: {out / 'result.json'}")


def _corpus_facts(corpus: Corpus, held_out: int, too_long: int, limit: int) -> dict[str, Any]:
    """What is known of the text, which is also noted."""
    used = len(corpus.documents)
    note(
        f"{corpus.name}: {corpus.found:,} documents, {used:,} of them different texts that were "
        f"read; of these {too_long:,} longer than {limit:,} tokens are left out, and {held_out:,} "
        "held out for evaluation"
    )
    return {
        "name": corpus.name,
        "found": corpus.found,
        "used": used,
        "too_long": too_long,
        "held_out": held_out,
    }


def _model(seed: int) -> PaddedGPT:
    torch.manual_seed(seed)
    return PaddedGPT(vocab_size=VOCABULARY, hidden_size=96, layers=1)
