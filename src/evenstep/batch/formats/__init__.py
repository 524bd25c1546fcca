"""A packed batch in the form that each consumer takes: pure functions, one file per consumer.

Each takes what `PackCollator()` returns and gives new objects that share its tensors where they
can. None of them imports the framework that it serves, but for PyTorch.
"""

from evenstep.batch.formats.hugging_face import to_hugging_face
from evenstep.batch.formats.masks import attention_mask, block_mask
from evenstep.batch.formats.megatron import to_megatron
from evenstep.batch.formats.torchtitan import to_torchtitan

__all__ = ["attention_mask", "block_mask", "to_hugging_face", "to_megatron", "to_torchtitan"]
