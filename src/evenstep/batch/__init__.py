"""From samples to batches: measuring, collating, and what each step says about itself."""

from evenstep.batch.check import check_packed, check_supervised
from evenstep.batch.forms import (
    attention_mask,
    block_mask,
    to_hugging_face,
    to_megatron,
    to_torchtitan,
)
from evenstep.batch.loss_scale import LOSS_SCALING, loss_scale, shard_loss_scale
from evenstep.batch.measure import Measure, length_of, patches_of, supervised_of
from evenstep.batch.pack import PackCollator
from evenstep.batch.pad import PadCollator
from evenstep.batch.shard import document_lengths, shard_batch, unshard
from evenstep.batch.step_info import STEP_KEY, StepInfo, StepTotals, attach_step, pop_step

__all__ = [
    "LOSS_SCALING",
    "STEP_KEY",
    "Measure",
    "PackCollator",
    "PadCollator",
    "StepInfo",
    "StepTotals",
    "attach_step",
    "attention_mask",
    "block_mask",
    "check_packed",
    "check_supervised",
    "document_lengths",
    "length_of",
    "loss_scale",
    "patches_of",
    "pop_step",
    "shard_batch",
    "shard_loss_scale",
    "supervised_of",
    "to_hugging_face",
    "to_megatron",
    "to_torchtitan",
    "unshard",
]
