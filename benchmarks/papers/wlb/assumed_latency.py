"""An assumed latency model of an H100 with FlashAttention, for papers whose machines had others.

Only ratios determine which sharding is chosen. Each figure is a share of the peak of dense bf16
products, and on the low side of published ones, most of all for short fragments, so that a sequence
is cut finer only where that gains more than the kernel may lose:

- Up to 128 queries are one tile and take equally long (WLB-LLM, Figure 10); 0.20 of the peak.
- At 256 queries two tiles share the keys that are loaded, and throughput rises steeply (the same
  figure, whose text gives no number): 0.32, which is 1.6 times as much.
- From 4,096 queries on, 0.55. FlashAttention-3's authors report 0.75 as their best case, and
  published runs 0.44 at 512 tokens and 0.63 at 16,384, neither with a causal mask.
- With fewer keys, the fixed time to begin and end a tile counts for more: half of that at 128 keys.
- Backward 0.8 of the forward throughput.

A call also takes 10 microseconds forward and 30 backward, where three kernels run.
"""

from __future__ import annotations

from benchmarks.papers.wlb.attention_latency import AttentionLatency, Table

H100_TFLOPS = 989.0
"""Dense bf16 products of an H100 SXM, by its data sheet."""

_QUERIES = {128: 0.20, 256: 0.32, 512: 0.40, 1024: 0.46, 4096: 0.55}
"""Share of the peak with many keys."""
_KEYS = {128: 0.5, 512: 0.75, 2048: 0.95, 8192: 1.0}
"""Share of that with fewer."""
_BACKWARD = 0.8


def assumed_latency(
    *, heads: int = 8, head_size: int = 128, peak_tflops: float = H100_TFLOPS
) -> AttentionLatency:
    """Makes the model described in the module.

    Args:
        heads: query heads of a GPU. All seconds grow with it, so no choice depends on it.
        peak_tflops: peak of another GPU in 1e12 operations a second.

    Raises:
        ConfigurationError: an argument is not positive.
    """

    def table(share: float) -> Table:
        return tuple(
            tuple(share * peak_tflops * rows * columns for columns in _KEYS.values())
            for rows in _QUERIES.values()
        )

    return AttentionLatency(
        heads=heads,
        head_size=head_size,
        queries=tuple(_QUERIES),
        keys=tuple(_KEYS),
        forward_tflops=table(1.0),
        backward_tflops=table(_BACKWARD),
        forward_launch=10e-6,
        backward_launch=30e-6,
    )
