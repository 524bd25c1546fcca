"""A packed batch in the form that each framework takes: pure functions, one file per framework.

Each takes what `PackCollator()` returns, and returns new objects that share its tensors where they
can. None of them imports its framework, except for PyTorch.

    packed         `PackedRow`: the fields of a packed batch, checked once
    hugging_face   keyword arguments for models of transformers
    encoders       those of its encoders: masks and positions
    megatron       the fields of Megatron-LM's `get_batch`, and its `PackedSeqParams`
    torchtitan     the `(input_dict, labels)` of torchtitan's train loop
    masks          masks for FlexAttention and scaled dot-product attention
"""

from evenstep.batch.formats.hugging_face import to_hugging_face
from evenstep.batch.formats.masks import attention_mask, block_mask
from evenstep.batch.formats.megatron import to_megatron
from evenstep.batch.formats.torchtitan import to_torchtitan

__all__ = ["attention_mask", "block_mask", "to_hugging_face", "to_megatron", "to_torchtitan"]
