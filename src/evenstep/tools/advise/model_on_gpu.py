"""What a model needs of a GPU's memory, and how fast it runs there, told without either.

The memory of a token is read off a forward pass of the model over tensors that have a shape and no
content: the bytes that autograd keeps, as PyTorch's fused attention keeps them. The rate of a GPU
is a measured one; of a GPU that was not measured no speed is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from evenstep.errors import ConfigurationError, described, needing
from evenstep.plan.value_checks import check_one_of

GPUS = {"a100": 79, "a100-40": 39, "b200": 178, "h100": 79, "h200": 139, "l40s": 44}
"""Their memory in GiB, rounded down."""
_RATES = {"h100": 440e12}
"""Operations per second, as `cost_of` counts them: of whole steps of a decoder of 0.48 billion
parameters in bf16. By it, 90 % of 360 groups that were timed are told within 4 % (docs/gpu.md)."""
_SHARE = 0.9
"""Of the memory that is taken; the rest is for communication, and for what lies between tensors."""
_STATE = 16
"""Bytes of a parameter: 2 of itself and 2 of its gradient, 12 of AdamW in float32."""
_LOSS = 8
"""Bytes of an entry of the vocabulary, for each token, that the loss needs beside what it keeps:
logits and their gradient in 16 bits, and one in 32."""


class Way(NamedTuple):
    """A way to train in a GPU's memory."""

    tokens: int
    recomputes: bool
    """Whether layers are computed twice: gradient checkpointing."""
    how: str


@dataclass(frozen=True, kw_only=True)
class ModelMemory:
    """Bytes that training takes in 16 bits, and with AdamW."""

    parameters: int
    token: float
    """Of each token of a batch."""
    recomputed: float
    """The same with gradient checkpointing of every layer."""

    @classmethod
    def of(cls, model: Any) -> ModelMemory:
        """
        Args:
            model: of transformers, on the device "meta".
        """
        config, kept = model.config.get_text_config(), _kept_by_token(model)
        old = model.gradient_checkpointing_enable  # renamed in transformers 5
        getattr(model, "activation_checkpointing_enable", old)({"use_reentrant": False})
        inputs = _kept_by_token(model)
        again = inputs + (kept - inputs) / config.num_hidden_layers
        loss = _LOSS * config.vocab_size
        return cls(parameters=model.num_parameters(), token=kept + loss, recomputed=again + loss)

    def fits(self, gib: int, ranks: int) -> Iterator[Way]:
        """What is fastest comes first."""
        for shards, where in ((1, "on each rank"), (ranks, "over all ranks (FSDP)")):
            left = _SHARE * gib * 2**30 - _STATE * self.parameters / shards
            for again, size in ((False, self.token), (True, self.recomputed)):
                how = f"{size / 1e6:.2f} MB a token{' with layers recomputed' * again}, optimizer"
                yield Way(int(left // size), again, f"{how} {where}, in 90% of the GPU's memory")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What is known of a model, and of a GPU for it."""

    packs: bool = False
    """Whether its attention has kernels that keep the documents of a row apart."""
    fits: tuple[Way, ...] = ()
    rate: float = 0.0
    """Units of cost per second of the GPU; 0 where it was not measured."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, gpu: str | None, ranks: int) -> ModelFacts:
        """
        Args:
            name: see `load_config`.
            gpu: one of `GPUS`.

        Raises:
            ConfigurationError: either is not known.
        """
        config = load_config(name)
        from transformers import AutoModelForCausalLM

        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
            memory = ModelMemory.of(model)
        except Exception as error:  # models do as they like
            return cls(notes=(f"What {name} takes cannot be told: {described(error)}.",))
        packs = any(getattr(model, f"_supports_flash_attn{old}", False) for old in ("", "_2"))
        takes = f"{type(model).__name__} {'takes' if packs else 'takes no'} packed batches, says "
        takes += "transformers; --packed and --no-packed overrule it."
        if gpu is None:
            return cls(packs=packs, notes=(takes,))
        check_one_of(GPUS, gpu=gpu)
        rate, speed = _RATES.get(gpu, 0.0), "no speed was measured: give --cost calibration:FILE."
        if rate:
            speed = "tokens/s as of whole steps of a decoder of 0.48 billion parameters; a layer "
            speed += "of one of 8 billion runs at 1.5 times its rate."
        fits = tuple(memory.fits(GPUS[gpu], ranks))
        return cls(packs=packs, fits=fits, rate=rate, notes=(takes, f"{gpu}: {speed}"))


NO_FACTS = ModelFacts()


def load_config(name: str) -> Any:
    """A model's configuration, of a file, a folder, or a name of the hub that was loaded before.

    Raises:
        ConfigurationError: it is not on this machine.
    """
    with needing("a model's configuration needs transformers", "hub"):
        from transformers import AutoConfig
    try:
        return AutoConfig.from_pretrained(name, local_files_only=True)
    except Exception as error:  # many kinds: files, versions, names
        raise ConfigurationError(
            f"{name!r} is no model on this machine: give its config.json ({described(error)})"
        ) from error


class _Attention(torch.autograd.Function):
    """Keeps what fused attention keeps."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)  # with its strides
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out


def _attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **others: Any) -> tuple[Any, None]:
    apply: Any = _Attention.apply
    return apply(q, k, v).transpose(1, 2).contiguous(), None


def _kept_by_token(model: Any) -> float:
    """Bytes that autograd keeps for a token."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("evenstep_shapes", _attend)
    model.config._attn_implementation = "evenstep_shapes"
    weights = {each.untyped_storage()._cdata for each in model.parameters()}
    found: list[int] = []
    for length in (256, 512):
        kept: dict[int, Any] = {}

        def keep(tensor: torch.Tensor, kept: dict[int, Any] = kept) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage  # alive, so that no other has its address
            return tensor

        ids = torch.zeros((1, length), dtype=torch.long, device=model.device)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(input_ids=ids, labels=ids, use_cache=False)
        found.append(sum(each.nbytes() for key, each in kept.items() if key not in weights))
    return (found[1] - found[0]) / 256
