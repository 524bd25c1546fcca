"""The text between the tables of `figures.py`, without the figures that a run decides."""

HEAD = """# Figures 12 to 15 of the WLB-LLM paper, as predictions

`python -m benchmarks.papers.wlb.figures --markdown docs/wlb-figures.md` writes this page.

**No step on this page was run on a GPU.** Step times are those of a model: attention of the slowest
context-parallel rank by [the built-in latency model](kernel-latency.md), everything else linear in
the tokens of a rank, 1F1B over the pipeline, the slowest data-parallel rank. All constants are
listed [below](#what-is-assumed), and none was fitted to the paper's figures. Its bars are not
printed as numbers, so the columns called "paper" have what its text states.

![predicted speedups, and the paper's figures](images/wlb-figures.png)

Documents are drawn from `pretrain-128k` and cut where original packing cuts them, at the window.
A speedup is over Plain-4D, in time per cost of the documents trained on; each is over {repeats}
streams of {batches} global batches. What waits when a stream ends counts for neither side.

- *Plain-4D*: original packing, per-sequence sharding.
- *Fixed-4D*: greedy fixed-length packing over one global batch; per-sequence or per-document
  sharding for the whole run, whichever is faster.
- *WLB-LLM*: packing by cost with {queues} queues of outliers, micro-batches of up to 1.25 windows;
  the faster of per-sequence and per-document sharding for each micro-batch.
- *evenstep*: steady packing, micro-batches in the order that suits the pipeline, and hybrid
  sharding among the plans to choose from."""

SECTIONS = {
    "12": """## Figure 12: Table 1's jobs

{table}

The paper's direction is there: long windows gain more, and large models less. Its sizes are not.
In the model large models gain far less, because the ranks of tensor and context parallelism there
reach across nodes and nothing hides their communication; of 70B, whose 16 tensor-parallel ranks are
two nodes, it leaves hardly anything to gain. The paper has only slightly less there, so its jobs
must hide much of what is counted here in full. Fixed-4D gains more than in the paper because
per-document sharding, which it may use, does.""",
    "13": """## Figure 13: the parts, 7B-128K

{table}

Two things differ. Packing gains less than the paper measured, because in the model attention is a
smaller part of a step, so that a long document makes a micro-batch less of an outlier; the last
table shows how far that goes. It is not all: on plain 1F1B with four stages and four micro-batches
the largest one counts four times and the others once, so that even the paper's own degrees of
imbalance, 1.44 before and 1.05 after, would make (4 + 3 x 1.44) / (4 + 3 x 1.05) = 1.16. What else
is in its 1.28 does not follow from the text. Per-document sharding gains more than there: the model
charges short fragments for their tiles and for slower kernels, and knows nothing else that speaks
against them.""",
    "14": """## Figure 14: context windows, 7B

{table}

All windows with TP=8, CP=2, PP=4, which the paper does not state. No document is longer than
131,072 tokens here, so beyond that window no document is as long as a micro-batch.""",
    "15": """## Figure 15: sharding of one layer, 7B, CP=4

{table}

Micro-batches of original packing; TP as in Table 1. The paper states per-document over per-sequence
for either window, and of its adaptive sharding one figure for both, which stands in the row of the
erring table: there each point of the table that chooses is off by a fifth, up or down at random,
while the right one says what was won. So the choice does not hang on the exact figures. A choice
by the model's own table is the optimal one by construction.""",
    "changed": """## What the predictions hang on

7B-128K once more, one assumption changed at a time. What decides is the part that attention has of
a step: how fast its kernel is, and how much of everything else is hidden.

{table}""",
}

ASSUMED = """## What is assumed

In code: `evenstep.tools.simulate.cluster_assumptions` and
`evenstep.context_parallel.latency_default`.

- Models are LLaMA2-7B and others of its ratios, without grouped-query attention; the paper says no
  more than that theirs are proportional.

{models}

- A GPU does {peak} TFLOPs at its peak, {share:g} of that in matrix products; backward takes twice
  the time of forward. Element-wise operations move {elements} elements of the model's width for
  each token and layer, forward, at {memory:g} TB/s. No activation is computed twice.
- Links carry {inside:g} GB/s within a node of {node} GPUs and {between:g} GB/s for each GPU between
  nodes, each way; a collective takes {collective:g} µs besides. Ranks of more than a node have
  the slower link. Nothing overlaps: tensor parallelism with sequence parallelism gathers or
  scatters activations four times a layer and pass; context parallelism gathers all keys and values
  forward, and scatters their gradients backward; gradients are summed at the end.
- 1F1B without interleaving, as many micro-batches as stages for each data-parallel rank. Sending to
  the next stage takes as long for all micro-batches as for one of a window's length.
- Embeddings, logits, optimizer and loading take no time.
- Packers count the cost of d tokens as d² + w d, where w is what the model gives for the job:
  {costs}."""
