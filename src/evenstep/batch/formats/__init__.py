"""A packed batch in the form that each framework takes: pure functions.

Each takes what `PackCollator()` returns, and returns new objects that share its tensors where they
can. None of them imports its framework, except for PyTorch.

    packed         `PackedRow`: the fields of a packed batch, checked once; and its masks
    hugging_face   keyword arguments for causal models of transformers
    train_loops    what the train loops of Megatron-LM and torchtitan take
"""

from evenstep.batch.formats.hugging_face import to_hugging_face
from evenstep.batch.formats.packed import attention_mask, block_mask
from evenstep.batch.formats.train_loops import to_megatron, to_torchtitan

__all__ = ["attention_mask", "block_mask", "to_hugging_face", "to_megatron", "to_torchtitan"]
