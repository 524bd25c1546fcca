"""Pipeline schedules, and the order of micro-batches that suits them."""

from evenstep.plan.pipeline.micro_batch_order import order_micro_batches, share_micro_batches
from evenstep.plan.pipeline.schedule import PassGraph, PipelineSchedule

__all__ = ["PassGraph", "PipelineSchedule", "order_micro_batches", "share_micro_batches"]
