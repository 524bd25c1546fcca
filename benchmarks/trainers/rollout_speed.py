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
from benchmarks.lib.report import Spread, markdown, parser, print_json, progress

OWN, BALANCED = "GRPOTrainer", "balance_rollouts"
_WARM_UP = 1  # updates before those that are measured
_GROUP = 8  # rollouts of a prompt


def main() -> None:
    arguments = parser(
        __doc__ or "", "python -m benchmarks.trainers.rollout_speed --repeats 5", repeats=3
    )
    arguments.add_argument("--updates", type=int, default=4, help="measured in each repeat")
    arguments.add_argument("--batch-size", type=int, default=4, help="rollouts of a micro-batch")
    arguments.add_argument("--accumulate", type=int, default=4, help="micro-batches of an update")
    arguments.add_argument("--longest", type=int, default=512, help="tokens of a completion")
    arguments.add_argument("--prompt", type=int, default=32, help="tokens of a prompt, at most")
    arguments.add_argument("--width", type=int, default=128, help="of the model")
    arguments.add_argument("--layers", type=int, default=2, help="of the model")
    given = arguments.parse_args()
    seconds: dict[str, list[float]] = {OWN: [], BALANCED: []}
    for repeat in range(given.repeats):
        progress(f"repeat {repeat + 1} of {given.repeats}")
        order = [OWN, BALANCED] if repeat % 2 else [BALANCED, OWN]  # later ones find warm caches
        for way, found in ranks.run(_repeat, 2, order, vars(given), repeat)[0].items():
            seconds[way].append(found)
    progress("")
    ratios = Spread.of([a / b for a, b in zip(seconds[OWN], seconds[BALANCED], strict=True)])
    each = {way: Spread.of(found) for way, found in seconds.items()}
    if given.json:
        shown = {way: found.as_dict() for way, found in each.items()}
        print_json({"seconds": shown, "ratio": ratios.as_dict(), "settings": vars(given)})
        return
    print(
        f"{2 * given.accumulate * given.batch_size} rollouts of up to {given.longest} tokens in an "
        f"update, two ranks, {given.repeats} repeats: median (10th-90th percentile)\n"
    )
    print(
        markdown(
            ["", "seconds of an update", "times as fast"],
            [
                [OWN, each[OWN].text(2), "1"],
                [BALANCED, each[BALANCED].text(2), ratios.text(2)],
            ],
        )
    )


def _repeat(order: list[str], given: dict[str, Any], repeat: int) -> dict[str, float]:
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
    return {way: _run(way, given, 100 * given["seed"] + repeat) for way in order}


def _run(way: str, given: dict[str, Any], seed: int) -> float:
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

    longest, prompt, vocabulary = given["longest"], given["prompt"], 1024
    rng = np.random.default_rng([seed, torch.distributed.get_rank()])

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        lengths = rng.lognormal(np.log(longest / 6), 0.9, len(prompts)).clip(4, longest)
        completions = [rng.integers(2, vocabulary, int(size)).tolist() for size in lengths]
        return {
            "prompt_ids": [rng.integers(2, vocabulary, prompt // 2).tolist() for _ in prompts],
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
    words = {"<pad>": 0, "<eos>": 1, **{f"w{n}": n for n in range(2, vocabulary)}}
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
                    vocab_size=vocabulary,
                    hidden_size=given["width"],
                    intermediate_size=3 * given["width"],
                    num_hidden_layers=given["layers"],
                    num_attention_heads=4,
                    num_key_value_heads=4,
                    max_position_embeddings=prompt + longest,
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
                max_steps=_WARM_UP + given["updates"],
                per_device_train_batch_size=given["batch_size"],
                gradient_accumulation_steps=given["accumulate"],
                num_generations=_GROUP,
                max_completion_length=longest,
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
            limit = given["batch_size"] * (prompt // 2 + longest)
            trainer = even.balance_rollouts(trainer, max_tokens=limit)
        trainer.train()
        torch.distributed.barrier()
        return (time.perf_counter() - clock.begun) / given["updates"]


if __name__ == "__main__":
    main()
