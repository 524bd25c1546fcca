"""The demo from beginning to end, in the parent process."""

from __future__ import annotations

import time
from functools import partial

import torch

from evenstep.batch import PadCollator
from evenstep_demos.models import PaddedGPT
from evenstep_demos.text.corpus import Corpus, read_parquet, read_standard_library
from evenstep_demos.text.options import DemoOptions
from evenstep_demos.text.prepared_text import END, PreparedText, TokenizedDocuments, prepare
from evenstep_demos.text.progress import Display
from evenstep_demos.text.result import DemoResult
from evenstep_demos.text.task import Task
from evenstep_demos.text.train_both import train_both


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
    task = Task(
        training=TokenizedDocuments(prepared.documents, prepared.tokenizer),
        lengths=prepared.lengths,
        held_out=TokenizedDocuments(prepared.held_out, prepared.tokenizer),
        held_out_lengths=prepared.held_out_lengths,
        collate=PadCollator(pad_token_id=END),
        model=partial(_model, options),
    )
    return train_both(options, task, display, begin=begin, facts=facts, samples="documents")


def _model(options: DemoOptions, seed: int) -> PaddedGPT:
    """The model before training, the same for both runs of a repeat."""
    torch.manual_seed(seed)
    return PaddedGPT(
        vocab_size=options.vocab_size, hidden_size=options.hidden_size, layers=options.layers
    )


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
