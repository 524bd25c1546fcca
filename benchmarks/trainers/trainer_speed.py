"""Hugging Face's Trainer on two CPU ranks: its own loader, its grouping by length, and evenstep's
Even, which `install` puts in.

All train a small Llama on the same samples, for as many epochs, in the same dtype, and with about
as many tokens in an update. Their memory limit is the same: Trainer's own batches hold as many
samples as fit if all are as long as the longest, and it accumulates as many batches as make an
update of Even's size. Every repeat runs the three one after the other, in other orders; ratios are
of the same repeat. Tokens are real ones, padding is not counted.
"""

from __future__ import annotations

import os
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
from benchmarks.lib.report import Spread, markdown, parser, print_json, progress

OWN, GROUPED, EVEN = "Trainer", "group_by_length", "install(Even)"
WAYS = (OWN, GROUPED, EVEN)
_FILLED = 0.9  # of max_tokens, in a batch of Even
_WARM_UP = 64  # samples, so that nothing is run for the first time where it is measured


@dataclass(frozen=True)
class Settings:
    samples: int
    epochs: float
    max_tokens: int
    longest: int
    width: int
    layers: int
    vocab_size: int
    learning_rate: float


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
    arguments.add_argument("--data", help="FILE.parquet:COLUMN, text; without it, made-up tokens")
    arguments.add_argument("--samples", type=int, default=2000, help="to train on")
    arguments.add_argument("--held-out", type=int, default=200, help="samples to evaluate on")
    arguments.add_argument("--epochs", type=float, default=1.0)
    arguments.add_argument("--max-tokens", type=int, default=2048, help="of a rank's batch, padded")
    arguments.add_argument("--longest", type=int, default=512, help="tokens of a sample")
    arguments.add_argument("--width", type=int, default=128, help="of the model")
    arguments.add_argument("--layers", type=int, default=2, help="of the model")
    arguments.add_argument("--vocab-size", type=int, default=1024)
    arguments.add_argument("--learning-rate", type=float, default=2e-3)
    given = arguments.parse_args()
    settings = Settings(**{name: getattr(given, name) for name in Settings.__dataclass_fields__})
    train, held_out = _data(given, settings)
    outcomes: dict[str, list[Outcome]] = {way: [] for way in WAYS}
    for repeat in range(given.repeats):
        # One that follows another finds warm caches.
        order = [WAYS[(repeat + n) % len(WAYS)] for n in range(len(WAYS))]
        progress(f"repeat {repeat + 1} of {given.repeats}")
        found = ranks.run(_repeat, 2, order, train, held_out, settings, repeat)[0]
        for way, outcome in found.items():
            outcomes[way].append(outcome)
    progress("")
    _print(outcomes, train, settings, as_json=given.json)


def _data(given: Any, settings: Settings) -> tuple[Tokens, Tokens]:
    if given.data:
        text = read_text(
            given.data,
            tokenizer=None,
            vocab_size=settings.vocab_size,
            max_length=settings.longest,
            held_out=given.held_out,
            cache=Path("out/learning"),
        )
        all_tokens, drawn = text.tokens, text.draw(settings.samples, 0)
        held_out = np.arange(given.held_out)
        return _picked(all_tokens, drawn), _picked(all_tokens, held_out)
    made = _made_up(settings.samples + given.held_out, settings)
    return (
        _picked(made, np.arange(settings.samples)),
        _picked(made, np.arange(settings.samples, len(made))),
    )


def _made_up(count: int, settings: Settings) -> Tokens:
    """Lengths of a heavy tail, and tokens of which each says something about the next."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(settings.longest / 8), 0.9, count), 8, settings.longest)
    follows = rng.integers(0, settings.vocab_size, (settings.vocab_size, 4))
    samples = []
    for length in lengths.astype(int):
        choices = rng.integers(0, 4, length).tolist()
        token = int(rng.integers(settings.vocab_size))
        tokens = []
        for choice in choices:
            tokens.append(token)
            token = int(follows[token, choice])
        samples.append(tokens)
    return Tokens.of(samples)


def _picked(tokens: Tokens, indices: np.ndarray[Any, Any]) -> Tokens:
    return Tokens.of(
        [tokens.flat[tokens.offsets[i] : tokens.offsets[i + 1]].tolist() for i in indices.tolist()]
    )


def _repeat(
    order: list[str], train: Tokens, held_out: Tokens, settings: Settings, seed: int
) -> dict[str, Outcome]:
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
        _run(way, few, None, settings, seed)
    return {way: _run(way, train, held_out, settings, seed) for way in order}


def _run(
    way: str, train: Tokens, held_out: Tokens | None, settings: Settings, seed: int
) -> Outcome | None:
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
            vocab_size=settings.vocab_size,
            hidden_size=settings.width,
            intermediate_size=3 * settings.width,
            num_hidden_layers=settings.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=settings.longest,
        )
    )
    batch_size = max(1, settings.max_tokens // settings.longest)
    own_tokens = batch_size * float(train.lengths.mean())
    accumulate = 1 if way == EVEN else max(1, round(_FILLED * settings.max_tokens / own_tokens))
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
                num_train_epochs=settings.epochs,
                learning_rate=settings.learning_rate,
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
            trainer = even.install(trainer, policy=evenstep.Even(max_tokens=settings.max_tokens))
        torch.distributed.barrier()
        begun = time.perf_counter()
        trainer.train()
        torch.distributed.barrier()
        seconds = time.perf_counter() - begun
        if held_out is None:
            return None
        return Outcome(
            seconds=seconds,
            tokens=round(int(train.lengths.sum()) * settings.epochs),
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


def _print(
    outcomes: dict[str, list[Outcome]], train: Tokens, settings: Settings, *, as_json: bool
) -> None:
    rates = {way: [one.tokens / one.seconds for one in outcomes[way]] for way in WAYS}
    figures = {
        way: {
            "tokens_per_second": Spread.of(rates[way]),
            "ratio": Spread.of([a / b for a, b in zip(rates[way], rates[OWN], strict=True)]),
            "held_out_loss": Spread.of([one.loss for one in outcomes[way]]),
            "updates": Spread.of([one.updates for one in outcomes[way]]),
        }
        for way in WAYS
    }
    if as_json:
        shown = {way: {k: v.as_dict() for k, v in of.items()} for way, of in figures.items()}
        print_json({"ways": shown, "samples": len(train), "settings": vars(settings)})
        return
    lengths = train.lengths
    print(
        f"{len(train):,} samples of {np.median(lengths):,.0f} tokens in the median and "
        f"{lengths.max():,} at most, two ranks, {len(outcomes[OWN])} repeats: "
        "median (10th-90th percentile)\n"
    )
    header = ["", "tokens/s", f"over {OWN}", "updates", "held-out loss"]
    lines = [
        [
            way,
            of["tokens_per_second"].text(0),
            of["ratio"].text(2),
            of["updates"].text(0),
            of["held_out_loss"].text(3),
        ]
        for way, of in figures.items()
    ]
    print(markdown(header, lines))


if __name__ == "__main__":
    main()
