"""What one rank does: measures its speed, agrees on the samples, then makes the runs in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from evenstep_demos.models import PaddedGPT
from evenstep_demos.text.batches import Batches, EvenBatches, FixedBatches
from evenstep_demos.text.budget import choose
from evenstep_demos.text.messages import Chosen, Message, RunProgress, TextRunFinished
from evenstep_demos.text.options import DemoOptions
from evenstep_demos.text.prepared_text import PreparedText, TokenizedDocuments
from evenstep_demos.text.train import held_out_loss, train_epoch

RUNS = ("fixed", "evenstep")
"""Names of the two runs, in the order of the first repeat; the next one turns it round."""


def job(send: Callable[[Message], None], options: DemoOptions, prepared: PreparedText) -> None:
    """The whole demo on one rank, inside an initialised process group.

    Args:
        send: takes messages of rank 0 to the parent process.
        options, prepared: equal on all ranks.
    """
    # One thread a rank, as every rank competes for the same cores. Denormal numbers, which the
    # softmax of a trained model makes many of, would make the later run slower than the earlier.
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    report = send if dist.get_rank() == 0 else _ignore

    # Also warms up the allocator and the kernels for the first run.
    speed = _seconds_per_token(_model(options, options.seed), options)
    choice = choose(prepared.lengths, options, speed)
    held_out = TokenizedDocuments(prepared.held_out, prepared.tokenizer)

    def evaluate(model: PaddedGPT) -> float:
        return held_out_loss(model, held_out, prepared.held_out_lengths, options.max_tokens)

    initial = evaluate(_model(options, options.seed))
    report(Chosen(choice=choice, seconds_per_token=speed, initial_loss=initial))
    dataset = TokenizedDocuments(prepared.documents[: choice.samples], prepared.tokenizer)
    for repeat in range(options.repeats):
        for run in RUNS if repeat % 2 == 0 else RUNS[::-1]:
            seed = options.seed + repeat
            batches: Batches = (
                FixedBatches(dataset, choice.batch_size, options, seed)
                if run == "fixed"
                else EvenBatches(dataset, choice.max_tokens, options, seed)
            )
            model = _model(options, seed)
            on_step = _step_reporter(report, f"{run} {repeat + 1}", choice.samples)
            records = train_epoch(model, batches, choice.samples, on_step)
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, records)
            report(
                TextRunFinished(
                    run=run, repeat=repeat, records=gathered, held_out_loss=evaluate(model)
                )
            )


def _ignore(message: Message) -> None:
    pass


def _step_reporter(
    report: Callable[[Message], None], run: str, total: int
) -> Callable[[int, float], None]:
    steps = 0

    def on_step(done: int, loss: float) -> None:
        nonlocal steps
        steps += 1
        report(RunProgress(run=run, done=done, total=total, step=steps, loss=loss))

    return on_step


def _model(options: DemoOptions, seed: int) -> PaddedGPT:
    """The model before training, the same for both runs of a repeat."""
    torch.manual_seed(seed)
    return PaddedGPT(
        vocab_size=options.vocab_size, hidden_size=options.hidden_size, layers=options.layers
    )


def _seconds_per_token(model: PaddedGPT, options: DemoOptions) -> float:
    """Time of a padded token, forward and backward, while all ranks compute; the slowest rank's."""
    longest = options.length_limit
    shapes = [(options.max_tokens // length, length) for length in (longest, longest // 4, longest)]
    rates = []
    for rows, length in shapes:
        tokens = torch.randint(0, options.vocab_size, (rows, length))
        dist.barrier()
        begin = time.perf_counter()
        model(tokens, tokens).backward()
        rates.append((time.perf_counter() - begin) / tokens.numel())
    slowest = torch.tensor(sum(rates[1:]) / len(rates[1:]), dtype=torch.float64)  # first: warm-up
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)
