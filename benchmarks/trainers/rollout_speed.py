"""TRL's GRPOTrainer on two CPU ranks: seconds of an update with its own micro-batches, and with
rollouts that `balance_rollouts` has the ranks exchange.

Both train a small Llama on the same rollouts under the same memory limit: a micro-batch of
evenstep has at most as many tokens as TRL's, if its rollouts were all as long as the longest.
Rollouts are made up, with a heavy tail, as fast as a list: generation is not measured. Every repeat
runs both, in turns first; ratios are of the same repeat.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import numpy as np
import torch

from benchmarks.lib import ranks
from benchmarks.lib.report import Spread, Table, parser, progress, show

OWN, BALANCED = "GRPOTrainer", "balance_rollouts"
BATCH_SIZE, ACCUMULATE = 4, 4  # rollouts of a micro-batch, and micro-batches of an update
PROMPT, LONGEST = 16, 512  # tokens of a prompt, and of a completion at most
WIDTH, LAYERS, VOCABULARY = 128, 2, 1024
_WARM_UP = 1  # updates before those that are measured
_GROUP = 8  # rollouts of a prompt


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.trainers.rollout_speed --repeats 5", repeats=3
    )
    arguments.add_argument("--updates", type=int, default=4, help="measured in each repeat")
    given = arguments.parse_args()
    seconds: dict[str, list[float]] = {OWN: [], BALANCED: []}
    for repeat in range(given.repeats):
        progress(f"repeat {repeat + 1} of {given.repeats}")
        order = [OWN, BALANCED] if repeat % 2 else [BALANCED, OWN]  # later ones find warm caches
        seed = 100 * given.seed + repeat
        for way, found in ranks.run(_repeat, 2, order, given.updates, seed)[0].items():
            seconds[way].append(found)
    ratios = Spread.of([a / b for a, b in zip(seconds[OWN], seconds[BALANCED], strict=True)])
    each = {way: Spread.of(found) for way, found in seconds.items()}
    title = (
        f"{2 * ACCUMULATE * BATCH_SIZE} rollouts of up to {LONGEST} tokens in an update, two "
        f"ranks, {given.repeats} repeats: median (10th-90th percentile)"
    )
    rows = [
        [OWN, each[OWN].text(2), "1"],
        [BALANCED, each[BALANCED].text(2), ratios.text(2)],
    ]
    show(Table(["", "seconds of an update", "times as fast"], rows, title), as_json=given.json)


def _repeat(order: list[str], updates: int, seed: int) -> dict[str, float]:
    """On every rank."""
    rank = torch.distributed.get_rank()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",  # the group exists already
        TRL_EXPERIMENTAL_SILENCE="1",
    )
    return {way: _run(way, updates, seed) for way in order}


def _run(way: str, updates: int, seed: int) -> float:
    """Seconds of an update."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        PrinterCallback,
        TrainerCallback,
    )
    from trl import GRPOConfig, GRPOTrainer

    from evenstep.integrations import transformers as even

    rng = np.random.default_rng([seed, torch.distributed.get_rank()])

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        lengths = rng.lognormal(np.log(LONGEST / 6), 0.9, len(prompts)).clip(4, LONGEST)
        completions = [rng.integers(2, VOCABULARY, int(size)).tolist() for size in lengths]
        return {
            "prompt_ids": [rng.integers(2, VOCABULARY, PROMPT).tolist() for _ in prompts],
            "completion_ids": completions,
            "logprobs": [[0.0] * len(each) for each in completions],
        }

    class Clock(TrainerCallback):
        begun = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == _WARM_UP:
                torch.distributed.barrier()
                self.begun = time.perf_counter()

    torch.manual_seed(seed)
    words = {"<pad>": 0, "<eos>": 1, **{f"w{n}": n for n in range(2, VOCABULARY)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="left",
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=WIDTH,
                    intermediate_size=3 * WIDTH,
                    num_hidden_layers=LAYERS,
                    num_attention_heads=4,
                    num_key_value_heads=4,
                    max_position_embeddings=2 * PROMPT + LONGEST,
                )
            ),
            reward_funcs=lambda completion_ids, **_: [float(sum(c) % 7) for c in completion_ids],
            rollout_func=rollouts,
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
                max_steps=_WARM_UP + updates,
                per_device_train_batch_size=BATCH_SIZE,
                gradient_accumulation_steps=ACCUMULATE,
                num_generations=_GROUP,
                max_completion_length=LONGEST,
                learning_rate=1e-5,
                ddp_find_unused_parameters=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"w{n}" for n in range(2, 200)]}),
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        clock = Clock()
        trainer.add_callback(clock)
        if way == BALANCED:
            limit = BATCH_SIZE * (PROMPT + LONGEST)
            trainer = even.balance_rollouts(trainer, max_tokens=limit)
        trainer.train()
        torch.distributed.barrier()
        return (time.perf_counter() - clock.begun) / updates


if __name__ == "__main__":
    main()
