"""The text between the tables of `table2.py`, without the figures that a run decides."""

HEAD = """# Table 2 of the WLB-LLM paper, again

`python -m benchmarks.papers.wlb.table2 --markdown docs/wlb-table2.md` writes this page: how even
the micro-batches of a step are under each way of packing documents, the paper's figure beside the
one that evenstep gets.

The paper's documents and its measured latencies are not public. Here lengths are drawn from
`pretrain-128k` (98.2 % log-normal with median 2,500 and sigma 0.8, 1.8 % log-uniform from 16,384 to
131,072), and the cost of a document of d tokens is {cost}. The share of long documents was
fitted to the imbalance that the paper prints for original packing, and nothing else was.

The context window is {context:,} tokens, and a step has 4 micro-batches if nothing else is
said. Where they may differ in length, none exceeds {cap:,} tokens, 1.25 windows. Each figure is the
mean over {repeats} streams of {batches} global batches, of a quarter as many with 16 micro-batches.
What waits when a stream ends is left waiting.

- *imbalance*: mean over steps of the largest micro-batch's cost over the mean, the paper's degree.
  *by time*: the sum of the largest over the sum of the means, what throughput sees.
- *1F1B*: time on a pipeline of four stages over that with micro-batches of equal cost, each
  step in the order that suits it.
- *delay*: steps that a token waits, mean, and the longest that any document waited; of packing
  over several global batches, how far it is moved.
- *tokens cv*: standard deviation over mean of the tokens of a step.
- *plan ms*: planning a step, on one core ({machine}). The paper's figures are
  from its own machine."""

CUT = """## The paper's rows

All methods get the same pieces: documents cut where original packing cuts them, every {context:,}
tokens. Thresholds of queues are `auto_thresholds`: {thresholds}.
evenstep's WLB goes beyond the paper's Algorithm 1 in three things: no document waits more than
{max_delay} steps, queues that are too short lend to each other, and a micro-batch may get a
second outlier. `steady` has no queues, and also bounds the tokens of a step.

The solver (HiGHS, for the paper's commercial one) takes long, so it packs fewer: the first
{solver_batches} global batches of each stream, with {time_limit:g} seconds for each packing. There
is a row for what original packing makes of the same ones. Over two global batches it minimizes the
sum of both largest costs. Every packing begins from the better of the original one and a
greedy one (`tight_fill`), and ended as follows: "optimal" is proven to be best, "feasible" is
better than what it began from, "greedy" means that nothing better was found in time.

{statuses}

Fixed-length greedy packing may cut a document where no window has room for a whole one; the solver
may not, so over one global batch greedy can be the better of the two.

{rows}"""

WHOLE = """## Whole documents

Documents that are not cut at windows are longer, and harder to balance.

{rows}"""
