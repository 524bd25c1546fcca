"""`cost_of`: the time of a model's samples, from its configuration.

It counts floating-point operations: of a token in the matrix products, and of a pair of tokens in
attention. On accelerators a pair takes longer than its operations say, since attention kernels run
at a lower rate: 0.6 of that of matrix products, on an H100. For example, attention takes as long as
all else in samples of 34,000 tokens of Llama 3 8B, where operations alone say 57,000.
"""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from evenstep.cost.models import UNKNOWN_MODEL, Cost, FittedCost
from evenstep.cost.vision_language import MeasuredCost, VisionLanguageCost

logger = logging.getLogger("evenstep")

ATTENTION_RATE = 0.6
"""Operations in a second of attention kernels, per those of matrix products."""

_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads"),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "chosen": ("num_experts_per_tok", "num_experts_per_token", "moe_topk"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared": ("n_shared_experts",),
    "shared_ffn": ("shared_expert_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
}

_BY_PATCH = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Vision towers whose processors say how many patches an image has."""
_BY_TILE = ("clip_vision_model", "siglip_vision_model", "internvl", "idefics3", "smolvlm")
"""Those that take images or tiles of one size, each of which is counted as one patch."""


def cost_of(model: Any, *, vision: bool = False) -> FittedCost | VisionLanguageCost:
    """The time of a model's samples, in operations: of its language model, where it has others.

    Knows dense models and mixtures of experts, with shared key and value heads, latent attention
    (``kv_lora_rank``) and sliding windows. Of any other the cost is `UNKNOWN_MODEL`. One line in
    the log says what was found.

    With `vision`, it is a cost of both parts, as if the tower is trained, for towers of Qwen2-VL,
    2.5 and 3, CLIP and SigLIP (LLaVA, Gemma 3 and others), InternVL, Idefics3 and SmolVLM; for any
    other tower it is that of the language model. Its patches are those that evenstep counts of a
    sample: the patches of a ``grid_thw``; where there is none, each image or tile counts as one,
    and costs what all of its patches do. Leave `vision` out for text: under a cost of both parts
    padded steps of text mix fewer lengths. Encoders of sound are left out, as the length of a sound
    is not counted.

    Args:
        model: a model of transformers, or its configuration; or any object with its names, such as
            ``hidden_size``.
        vision: whether samples have images whose patches are counted.
    """
    config = getattr(model, "config", model)
    name = getattr(config, "model_type", None) or type(config).__name__
    tower = getattr(config, "vision_config", None) if vision else None
    try:
        language = _counted(getattr(config, "text_config", None) or config)
        of_images = None if tower is None else _of_tower(tower)
    except (AttributeError, TypeError, ZeroDivisionError):
        logger.info(
            "the cost of %s is not known; attention is taken to equal the rest at 24,000 tokens. "
            "Pass cost=, such as an evenstep.cost.TransformerCost, to the policy",
            name,
        )
        return UNKNOWN_MODEL
    pairs = language.per_pair
    logger.info(
        "the cost of %s follows from its configuration: attention takes as long as all else %s%s",
        name,
        f"at {language.per_token / pairs:,.0f} tokens" if pairs else "at no length",
        "" if tower is None else f"; its vision tower is {'counted' if of_images else 'left out'}",
    )
    if of_images is None:
        return language
    return VisionLanguageCost(language=language, vision=of_images)


def cost_in_place_of(given: Cost, model: Any, *, vision: bool) -> Cost | None:
    """The cost of a model in place of one that was not given, or that begins with an unknown model;
    None where another was.

    Args:
        vision: see `cost_of`.
    """
    measured = given == MeasuredCost()
    if not measured and given != UNKNOWN_MODEL:
        return None
    cost = cost_of(model, vision=vision)
    if not measured:
        return cost
    if isinstance(cost, FittedCost):
        return MeasuredCost(per_pair=cost.per_pair / cost.per_token)
    return replace(cost, language=MeasuredCost(**asdict(cost.language)))  # type: ignore[call-overload]


def _counted(config: Any) -> FittedCost:
    layers, hidden, heads = (_number(config, name) for name in ("layers", "hidden", "heads"))
    attention, pair = _attention(config, hidden, heads)
    sliding = _sliding_layers(config, layers)
    window = getattr(config, "sliding_window", None) or 0
    head = hidden * int(getattr(config, "vocab_size", 0))
    products = layers * attention + _feed_forward(config, layers, hidden) + head
    # Forward and backward, an addition and a multiplication for each parameter. A causal model
    # computes half of the pairs; in a window, so many for each token.
    bidirectional = hasattr(config, "type_vocab_size") and not getattr(config, "is_decoder", False)
    share = 1.0 if bidirectional else 0.5
    each = 3 * pair / ATTENTION_RATE
    return FittedCost(
        per_group=0.0,
        per_token=float(6 * products + sliding * each * window),
        per_pair=float((layers - sliding) * each * share),
    )


def _of_tower(config: Any) -> FittedCost | None:
    """The time of what counts as a patch of an image; None for a tower that is not known."""
    kind = str(getattr(config, "model_type", "")).removesuffix("_vision")
    if kind not in _BY_PATCH + _BY_TILE:
        return None
    windows = kind == "qwen2_5_vl"  # which is gated, too
    layers = _number(config, "layers")
    hidden = int(getattr(config, "embed_dim", None) or config.hidden_size)
    ffn = _number(config, "ffn", int(hidden * getattr(config, "mlp_ratio", 4)))
    per_token = 6.0 * layers * hidden * (4 * hidden + (3 if windows else 2) * ffn)
    each = 3 * 4 * hidden / ATTENTION_RATE
    if windows:
        whole = len(config.fullatt_block_indexes)
        per_token += (layers - whole) * each * (config.window_size // config.patch_size) ** 2
        layers = whole
    per_pair = layers * each
    if kind in _BY_TILE:
        patches = math.prod(np.broadcast_to(config.image_size, 2) // config.patch_size)
        per_token, per_pair = patches * (per_token + per_pair * patches), 0.0
    return FittedCost(per_group=0.0, per_token=float(per_token), per_pair=float(per_pair))


def _attention(config: Any, hidden: int, heads: int) -> tuple[int, int]:
    """Parameters of a layer's attention, and operations of a pair in the forward pass."""
    latent = getattr(config, "kv_lora_rank", None)
    if latent:
        rope, values = config.qk_rope_head_dim, config.v_head_dim
        keys = config.qk_nope_head_dim + rope
        queries = getattr(config, "q_lora_rank", None)
        query = (hidden + heads * keys) * queries if queries else hidden * heads * keys
        key_value = hidden * (latent + rope) + latent * heads * (keys - rope + values)
        return query + key_value + heads * values * hidden, 2 * heads * (keys + values)
    size = getattr(config, "head_dim", None) or hidden // heads
    kv_heads = _number(config, "kv_heads", heads)
    return 2 * hidden * size * (heads + kv_heads), 4 * heads * size


def _feed_forward(config: Any, layers: int, hidden: int) -> int:
    """Parameters of all layers' feed-forward networks that a token meets."""
    matrices = 3 if hasattr(config, "rms_norm_eps") else 2  # models with it are gated
    width = _number(config, "ffn", 4 * hidden)
    experts = _number(config, "experts", 0)
    if not experts:
        return layers * matrices * hidden * width
    each = _number(config, "expert_ffn", width)
    shared = _number(config, "shared", 0) * each + _number(config, "shared_ffn", 0)
    met = _number(config, "chosen") * each + shared
    dense = min(_number(config, "dense_layers", 0), layers)
    sparse = layers - dense
    return matrices * hidden * (dense * width + sparse * met) + sparse * hidden * experts


def _sliding_layers(config: Any, layers: int) -> int:
    """Layers whose attention is in windows."""
    if not getattr(config, "sliding_window", None):
        return 0
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return sum(kind == "sliding_attention" for kind in kinds)
    return layers if getattr(config, "use_sliding_window", True) else 0


def _number(config: Any, name: str, default: int | None = None) -> int:
    """The first of a name's spellings that is set.

    Raises:
        AttributeError: none is, and there is no default.
    """
    for spelling in _NAMES[name]:
        value = getattr(config, spelling, None)
        if value is not None:
            return int(value)
    if default is None:
        raise AttributeError(f"no {name}")
    return default
