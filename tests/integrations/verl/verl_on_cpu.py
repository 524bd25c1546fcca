"""verl's FSDP2 engines on the CPU, with a tiny model, and batches as its driver makes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import verl.utils.model
from verl import DataProto
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import set_platform
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import (
    ActorConfig,
    CriticConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
)
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.utils.losses import ppo_loss, value_loss
from verl.workers.utils.padding import left_right_2_no_padding

PROMPT, ANSWER, VOCABULARY = 12, 60, 50


class PlatformCPU(PlatformCUDA):
    """What verl asks of a platform, with the CPU for a GPU."""

    device_name = "cpu"
    device_module = torch.cpu

    def current_device(self) -> Any:
        return "cpu"

    def communication_backend_name(self) -> str:
        return "gloo"


set_platform(PlatformCPU())


def save_model(folder: Path) -> None:
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_labels=1,
    )
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)


def make_engine(folder: Path, kind: str, packed: bool) -> Any:
    """An engine that changes no weights, so that every update has the gradient of the first."""
    verl.utils.model.load_valuehead_model = _value_model
    torch.manual_seed(0)
    model = HFModelConfig(
        path=str(folder),
        model_type="value_model" if kind == "critic" else "language_model",
        load_tokenizer=False,
        use_remove_padding=packed,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
    )
    single = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"), "fp32")
    options = FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False, mixed_precision=single)
    optimizer = FSDPOptimizerConfig(lr=0.0, clip_grad=1e9, total_training_steps=10)
    name = "FSDPEngineWithValueHead" if kind == "critic" else "FSDPEngineWithLMHead"
    engine = getattr(transformer_impl, name)(model, options, optimizer, CheckpointConfig())
    engine.initialize()
    return engine


def _value_model(local_path: str, torch_dtype: Any, model_config: Any, **_: Any) -> Any:
    """verl's own asks for flash attention."""
    return transformers.AutoModelForTokenClassification.from_pretrained(
        local_path, dtype=torch_dtype, config=model_config
    )


def make_loss(kind: str, mode: str) -> Any:
    options: dict[str, Any] = {
        "strategy": "fsdp2",
        "use_dynamic_bsz": True,
        "loss_agg_mode": mode,
        "loss_scale_factor": ANSWER,
    }
    if kind == "critic":
        return partial(value_loss, config=CriticConfig(**options))
    config = ActorConfig(rollout_n=1, use_kl_loss=True, entropy_coeff=0.1, **options)
    return partial(ppo_loss, config=config)


def make_batch(rows: int, ranks: int, rank: int, *, packed: bool = False, **values: Any) -> Any:
    """This rank's share of a batch of the driver. Ranks have equally many rows, and the last one
    most of the tokens. One answer has no token that counts.

    Args:
        packed: for rows without padding, and without padding itself, as of `trainer.use_v1`; else
            prompts are padded on the left and answers on the right.
    """
    rng = np.random.default_rng(7)
    mask = torch.zeros(rows, PROMPT + ANSWER, dtype=torch.int64)
    for row in range(rows):
        longest = ANSWER if row >= rows - rows // ranks else ANSWER // 4
        mask[row, PROMPT - rng.integers(1, PROMPT + 1) : PROMPT + rng.integers(2, longest + 1)] = 1
    ids = torch.from_numpy(rng.integers(1, VOCABULARY, mask.shape)) * mask
    counted = mask[:, PROMPT:].clone()
    counted[1] = 0
    of_answers = ("old_log_probs", "ref_log_prob", "advantages", "values", "returns")
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "prompts": ids[:, :PROMPT],
        "responses": ids[:, PROMPT:],
        "response_mask": counted,
        **{
            name: torch.from_numpy(rng.normal(-1, 0.5, (rows, ANSWER))).float()
            for name in of_answers
        },
    }
    uids = np.array([f"row {n}" for n in range(rows)], object)
    notes = np.array([{"grid": torch.arange(n)} if n % 2 else None for n in range(rows)], object)
    whole = DataProto.from_dict(
        tensors, {"uid": uids, "notes": notes}, meta_info={"temperature": 1.0}
    ).to_tensordict()
    whole = left_right_2_no_padding(whole)
    if packed:
        answered = mask[:, PROMPT:].bool()
        for name in ("responses", "response_mask", "loss_mask", *of_answers):
            whole[name] = _nested(whole[name], answered)
        whole["prompts"] = _nested(whole["prompts"], mask[:, :PROMPT].bool())
        del whole["attention_mask"], whole["max_response_len"]
    share = np.array_split(np.arange(rows), ranks)[rank].tolist()
    data = tensordict_utils.index_select_tensor_dict(whole, share)
    return tensordict_utils.assign_non_tensor(
        data,
        use_dynamic_bsz=True,
        use_remove_padding=packed,
        calculate_entropy=True,
        global_batch_size=rows,
        **values,
    )


def _nested(column: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = [row[own] for row, own in zip(column, mask)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
