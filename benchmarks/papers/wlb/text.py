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
