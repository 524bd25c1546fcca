"""What the chapter on WLB-LLM says between its tables."""

HEAD = """\
Workload-balanced 4D parallelism: packing of documents by cost, and sharding of sequences over
ranks. The paper's documents, models and traces are not public. Lengths are drawn from
`pretrain-128k`, whose share of long documents was fitted to one printed figure, the imbalance of
original packing in Table 2; nothing else was fitted to the paper."""

FIGURE_1A = """\
Attention of every rank of one step of the paper's job, 8,192 GPUs as TP=8, CP=16, PP=16, DP=4 with
windows of 131,072 tokens: for each of 64 micro-batches by the latency model, summed over those of a
data-parallel rank. Stages of a pipeline compute the same micro-batches, and tensor-parallel ranks
the same tokens, so they do not differ, as in the figure. Each cell has the slowest rank over the
mean, and over the fastest; mean over steps. The last column adds all that is linear in tokens, of
which a model of this width has much more than attention."""

FIGURE_3 = """\
Original packing lays documents end to end and cuts them at every window. A position in the middle
of a window is likelier to lie in a long piece, as those at the ends are more often in what a cut
has left of a document. The paper speaks of truncation; what a cut leaves may begin the next window,
as here in Table 2, or be dropped, which makes the beginning of a window poorer in long pieces."""

WLB_ROWS = """\
evenstep's packer goes beyond the paper's Algorithm 1 in three things: no document waits without a
bound, queues that are too short lend to each other, and a micro-batch may get a second outlier. So
its rows are not the paper's. Here is the algorithm as printed: a document must leave a micro-batch
*below* the limit, the micro-batch of fewest tokens is the only one tried after that of least work,
and every full queue gives up its documents.

The paper's 1.24 with one queue and 1.05 with two or three lie within what thresholds decide; with
thresholds that suit the documents, the algorithm as printed is more even than its own figures. What
goes wrong with it, in the second table:

- The limit is not printed. At one window, documents that waited for each other find no room beside
  what is there already and are ordinary from then on: hundreds wait in the end, some for most of
  the run, and a document of exactly the limit is never trained on at all.
- All queues that are full give up their documents in one step, where two of them are two outliers
  for each micro-batch. With room for both this evens out best; with less, the second find none.
- `Remained_Doc` is filled and never emptied. Taken literally, what found no room once is trained on
  again in every later step: the last column. The rows above empty it.
- Nothing bounds how long a document waits: see *longest*, in steps."""

LOSS = """\
Documents are blocks of source code, a vocabulary of 1,024, windows of 2,048 tokens, four to a step;
the longest blocks fill a window, as the paper's longest documents do. A GPT of one layer and width
64 is trained on a CPU once for each way of packing and seed. For a seed all get the same documents,
weights and learning rates; a step's gradient is the mean over its tokens. Loss is that of held-out
blocks. *Composition* is the variance of length within steps over that within random ones: the lower
it is, the more alike in length are the documents of a step; documents of an original window come
from one file only by chance, but a long one fills several windows of a step.

Imbalance falls with the window as in Figure 6, and delay grows. The loss does not tell the ways of
packing apart: seeds of the same two differ by more than the paper's 1.6 %, which it found after
52,000 updates. So these runs say that no way of packing does great harm early on, and no more;
`SEEDS` and `STEPS` in the file make longer ones. Needs `EVENSTEP_DATA`, a folder with
`code_repos.parquet`; finished runs are kept in `out/packing-windows`."""

FIGURE_7 = """\
`evenstep profile` measures one layer over single documents, forward and backward, in two parts; two
fits without negative coefficients give the cost that packers use."""

FIGURE_10 = """\
`evenstep profile --attention`. The adaptive choice of sharding needs this table of the device at
hand; [the built-in one](../kernel-latency.md) for an H100 is assumed, not measured. On a GPU the
command measures it."""

SOLVER = """\
Each packing begins from the better of the original one and a greedy one, so "greedy" means that
nothing better was found in time. Greedy packing may cut a document where no window has room for a
whole one; the solver may not."""

SWEEP = """\
The predictions above give WLB-LLM 1.15 over Plain-4D for 7B-128K, the paper measured 1.33 (mean of
all jobs: 1.16 and 1.23). Here one assumption is changed at a time.

- *What communication hides* decides most. With all of it in the open, as assumed, attention is a
  quarter of a layer, and original packing is uneven by 1.27 in time, where the paper's Table 2 has
  1.44. With none of it, attention and matrix products alone, it is the paper's 1.44 exactly.
- *How often ranks wait* decides the rest. On plain 1F1B with as many micro-batches as stages the
  largest micro-batch counts once for each stage and the others once. If all wait for the slowest in
  every micro-batch, as ranks that gather sharded parameters do, packing gains about what the paper
  measured: 1.19 with communication in the open, 1.30 with all of it hidden, against 1.28.
- *A slower kernel* acts like hidden communication, a faster one the other way.
- *More long documents* add little, since they are cut at windows. Queues and the limit of a
  micro-batch add nothing.
- Per-document sharding gains more here under all of them than the paper's 1.02, so its kernels
  must lose more on short fragments than the built-in table says."""

FIGURE_15 = """\
Processor time of the rank that computes most, over six micro-batches of original packing; four
processes share each over Gloo. The prediction for an H100 is on
[the page of figures](../wlb-figures.md#figure-15-sharding-of-one-layer-7b-cp4)."""
