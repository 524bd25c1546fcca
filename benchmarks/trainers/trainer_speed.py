"""Hugging Face's Trainer on two CPU ranks: its own loader, its grouping by length, and evenstep's
Even, which `install` puts in.

All train a small Llama on the same samples, for an epoch, in the same dtype, and with about as many
tokens in an update. Their memory limit is the same: Trainer's own batches hold as many
samples as fit if all are as long as the longest, and it accumulates as many batches as make an
update of Even's size. Every repeat runs the three one after the other, in other orders; ratios are
of the same repeat. Tokens are real ones, padding is not counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning.text import read_text
from benchmarks.lib import ranks
from benchmarks.lib.corpus import Tokens
from benchmarks.lib.report import Spread, Table, parser, progress, show

OWN, GROUPED, EVEN = "Trainer", "group_by_length", "install(Even)"
WAYS = (OWN, GROUPED, EVEN)
MAX_TOKENS, LONGEST = 2048, 512  # of a rank's batch, padded, and of a sample
WIDTH, LAYERS, VOCABULARY = 128, 2, 1024
LEARNING_RATE = 2e-3
_FILLED = 0.9  # of MAX_TOKENS, in a batch of Even
_WARM_UP = 64  # samples, so that nothing is run for the first time where it is measured


@dataclass(frozen=True)
class Outcome:
    seconds: float
    tokens: int
    """Real ones, of all ranks."""
    updates: int
    loss: float
    """Held-out."""


def main() -> None:
    arguments = parser(
        __doc__ or "",
        "python -m benchmarks.trainers.trainer_speed --data FILE.parquet:text --repeats 5",
        repeats=3,
    )
    arguments.add_argument("--data", help="FILE.parquet:COLUMN, text; needed")
    arguments.add_argument("--samples", type=int, default=2000, help="to train on")
    arguments.add_argument("--held-out", type=int, default=200, help="samples to evaluate on")
    given = arguments.parse_args()
    if not given.data:  # so that `make bench` continues
        print("skipped: give --data FILE.parquet:COLUMN", file=sys.stderr)
        return
    text = read_text(
        given.data,
        tokenizer=None,
        vocab_size=VOCABULARY,
        max_length=LONGEST,
        held_out=given.held_out,
        cache=Path("out/learning"),
    )
    train = _picked(text.tokens, text.draw(given.samples, 0))
    held_out = _picked(text.tokens, np.arange(given.held_out))
    outcomes: dict[str, list[Outcome]] = {way: [] for way in WAYS}
    for repeat in range(given.repeats):
        # One that follows another finds warm caches.
        order = [WAYS[(repeat + n) % len(WAYS)] for n in range(len(WAYS))]
        progress(f"repeat {repeat + 1} of {given.repeats}")
        found = ranks.run(_repeat, 2, order, train, held_out, repeat)[0]
        for way, outcome in found.items():
            outcomes[way].append(outcome)
    show(table_of(outcomes, train), as_json=given.json)


def _picked(tokens: Tokens, indices: np.ndarray[Any, Any]) -> Tokens:
    return Tokens.of(
        [tokens.flat[tokens.offsets[i] : tokens.offsets[i + 1]].tolist() for i in indices.tolist()]
    )


def _repeat(order: list[str], train: Tokens, held_out: Tokens, seed: int) -> dict[str, Outcome]:
    """On every rank."""
    rank = torch.distributed.get_rank()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",  # the group exists already
    )
    few = _picked(train, np.arange(min(_WARM_UP, len(train))))
    for way in order:
        _run(way, few, None, seed)
    return {way: _run(way, train, held_out, seed) for way in order}


def _run(way: str, train: Tokens, held_out: Tokens | None, seed: int) -> Outcome | None:
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

    import evenstep
    from evenstep.integrations import transformers as even

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=3 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LONGEST,
        )
    )
    batch_size = max(1, MAX_TOKENS // LONGEST)
    own_tokens = batch_size * float(train.lengths.mean())
    accumulate = 1 if way == EVEN else max(1, round(_FILLED * MAX_TOKENS / own_tokens))
    options: dict[str, Any] = {}
    if way == GROUPED:
        newer = "train_sampling_strategy" in TrainingArguments.__dataclass_fields__
        options = (
            {"train_sampling_strategy": "group_by_length"} if newer else {"group_by_length": True}
        )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                use_cpu=True,
                seed=seed,
                report_to=[],
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
                num_train_epochs=1,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant_with_warmup",
                warmup_steps=10,
                per_device_train_batch_size=batch_size,
                per_device_eval_batch_size=batch_size,
                gradient_accumulation_steps=accumulate,
                ddp_find_unused_parameters=False,
                **options,
            ),
            train_dataset=train,
            eval_dataset=held_out,
            data_collator=evenstep.PadCollator(),
        )
        trainer.remove_callback(PrinterCallback)
        if way == EVEN:
            trainer = even.install(trainer, policy=evenstep.Even(max_tokens=MAX_TOKENS))
        torch.distributed.barrier()
        begun = time.perf_counter()
        trainer.train()
        torch.distributed.barrier()
        seconds = time.perf_counter() - begun
        if held_out is None:
            return None
        return Outcome(
            seconds=seconds,
            tokens=int(train.lengths.sum()),
            updates=trainer.state.global_step,
            loss=_held_out_loss(trainer, held_out),
        )


def _held_out_loss(trainer: Any, held_out: Tokens) -> float:
    """Mean over tokens: the mean over batches that Trainer gives depends on what is in them."""
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    model.eval()
    total, tokens = 0.0, 0
    with torch.no_grad():
        for index in range(len(held_out)):
            sample = held_out[index]
            count = len(sample["input_ids"]) - 1
            out = model(input_ids=sample["input_ids"][None], labels=sample["labels"][None])
            total += float(out.loss) * count
            tokens += count
    return total / tokens


def table_of(outcomes: dict[str, list[Outcome]], train: Tokens) -> Table:
    rates = {way: [one.tokens / one.seconds for one in outcomes[way]] for way in WAYS}
    rows = [
        [
            way,
            Spread.of(rates[way]).text(0),
            Spread.of([a / b for a, b in zip(rates[way], rates[OWN], strict=True)]).text(2),
            Spread.of([one.updates for one in outcomes[way]]).text(0),
            Spread.of([one.loss for one in outcomes[way]]).text(3),
        ]
        for way in WAYS
    ]
    title = (
        f"{len(train):,} samples of {np.median(train.lengths):,.0f} tokens in the median and "
        f"{train.lengths.max():,} at most, two ranks, {len(outcomes[OWN])} repeats: "
        "median (10th-90th percentile)"
    )
    return Table(["", "tokens/s", f"over {OWN}", "updates", "held-out loss"], rows, title)


if __name__ == "__main__":
    main()
