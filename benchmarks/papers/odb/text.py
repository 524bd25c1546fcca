"""What the page of the ODB paper says between its tables."""

HEAD = """\
What the paper on online dynamic batching (ODB) prints, beside what evenstep gets. Throughput,
losses and benchmark scores of its models, which need its GPUs, are not here; shapes of batches,
protocols and what a loader waits for are.

The lengths are not the paper's data. They are drawn from distributions fitted to what its Table 10
and section 3.1 print of the data: median, 95th and 99th percentile, maximum, mean and coefficient
of variation. What depends on anything else, as the number of very short samples, is a guess."""

SHAPES = """\
8 ranks, one epoch over 95 % of each data set, which is how many samples the printed updates add up
to. An update is one step of all ranks. Taken from the paper: ODB's budgets, its buffer of 1,024
samples, and the batch sizes of Standard and HFG, which follow from their samples per update. The
budgets of GMT and BMT are not printed. They were *inferred*: of 1,024, 1,280, 1,536, 2,048, 3,072,
4,096, 6,144, 8,192, 10,240, 12,288, 14,336, 16,384 and 24,576, the one that comes closest to the
printed tokens per update. Nothing else was fitted. BMT's bucket size is not printed either;
evenstep's default of 8,192 samples was left as it is.

*ODB, released package* is `online-dynamic-batching` 0.1.2 itself, its own loop over the same
lengths, in its default setting, which begins each epoch with small windows; the row is missing
where the package is not installed. evenstep's `TokenBudget` has no such warm-up. `Even`, evenstep's
default, has the same budget as ODB; on ShareGPT4o 2B the budget is below the longest sample, which
ODB trains alone and `Even` refuses, so there it has the budget that this sample takes in any case.

Samples per update are those of the data set, over updates: what is repeated to make ranks equal is
not counted. Imbalance, the largest rank's padded tokens over the mean, summed over updates, is
evenstep's measure, and the paper has no figure for it.

How to read the differences:

- **Standard** and **HFG** have as many updates as printed, exactly, as both are arithmetic; their
  padding tests the distributions and the order of samples. HFG's, which is far above what sorting
  should leave, comes out too: the paper deals sorted *samples* to ranks in turn, so that a batch of
  one rank has only every eighth neighbour, and so does Hugging Face's sampler.
- **ODB**: on UltraChat and LLaVA the paper's samples per update lie between those of `TokenBudget`
  and of the package. The rule is the same; the package's warm-up makes the difference. Its padding
  is nearer to the paper's too. On ShareGPT4o both are below the paper, as the fitted lengths have
  the mean of Table 10, 1,511, while what is trained on has 1,494, as Standard's row says.
- **GMT**, **BMT** on UltraChat and LLaVA: one budget on the list matches nearly, all others miss
  by a tenth or more, so the inferred budgets are likely those used. On ShareGPT4o they are not
  certain: with budgets near 1,000 or 2,000 tokens everything depends on how many samples are
  shorter than 512 or 1,024 tokens, which the paper does not print.
- **Not explained: tokens.** In each cell every method trains on the same samples once, so updates
  x tokens per update must be the same for all. No way of batching changes that, and evenstep's rows
  add up. In these printed rows the product is more than 0.5 % off Standard's, so that they cannot
  be met in samples *and* in tokens:
{drifting}
- **Not explained: padding of GMT and BMT on ShareGPT4o**, 1.8 and 2.1 %. Batches there hold one to
  four neighbours in an order of length. Neighbours among so many sorted samples of up to 2,048
  tokens differ by a token or none, longer ones stand alone, and at most 7 batches are repeated.
  That leaves next to no padding, and the paper's own BMT row for 8B has 0.0."""

TABLE_4 = """\
The paper bounds what is fetched and not trained on, when an epoch stops because one rank has run
out, by ranks x depth over samples (W D / N); the depth is what a rank may have fetched. The bound
is arithmetic, and comes out the same. In evenstep, samples that workers have prepared ahead wait
outside the window, and a policy can hold back no more than its window: W x window / N, where the
window is the printed buffer (1,024 where none is printed, and LLaVA's budget that of Appendix I).

Measured are epochs of `TokenBudget`: with equal shares, as a distributed sampler gives; with one
rank that has half as many samples as the others; and with one that has a twentieth.
`exhausted="stop"` is the paper's non-join ending: the others do not get to train on what is left of
*their shares*, window or not. Still nothing is left unless the shares are far apart, because
evenstep's ranks know what the others have left, and plan smaller groups where there is less, until
all run out together. `exhausted="pad"`, the default, is the paper's join ending, but with the same
number of steps on every rank: one that has nothing left gets filler steps, whose loss is zero.
Nothing is ever missing."""

TABLE_5 = """\
One epoch over the whole data set, non-join. What is repeated is what the sampler repeats to give
all ranks equally many; `duplicates` counts emissions beyond that."""

THEOREM_2 = """\
`loader.epochs(samples=N)` counts the samples of all ranks, in states too, and begins one pass after
the other. With S the samples of the last update, N <= emitted < N + S: that is asserted for
arbitrary policies, shards and endings, each also stopped after a step and resumed, and on two
processes that are killed in their second epoch, and on 2, then 3, then 1."""

COROLLARY_1 = """\
1,000 samples of each distribution, 8 ranks, a budget of 4,096 tokens, a buffer of 64. The quota
error is max(0, 1 - emitted / N); the identity error is the share of samples that never came. Short
is 64 to 512 tokens in `longtail` and `bimodal`, long is 1,800 to 2,048. `evenstep simulate
token-budget --lengths longtail` takes them by name."""

SORTED = """\
Of Sorted the paper says that it is online, and that it is grouped by length, with a fixed batch
size; and of models trained with it that they had seen short samples before long ones. Two policies
come near: `Sorted` sorts the whole data set, and needs all lengths in advance; `PoolSort` sorts
what it has buffered. The batch sizes are those of HFG.

Both would gain far more than the paper measured if time were in proportion to tokens. With a batch
of one, on ShareGPT4o, it gains nothing in the paper: so there a step of one short sample must take
about as long as one of a long one."""

PACKING = """\
One packed sequence of 8,192 tokens, the cutoff of UltraChat, on each of 8 ranks. Efficiency is in
tokens, a packed sequence computed at its full width."""

FIGURE_2A = """\
What is predicted is efficiency, in tokens: useful ones over those that all ranks could have
computed while the slowest one did. Waiting for the longest sample of eight ranks, not padding, is
what a fixed batch of one loses on this data, and nearly all that ODB wins back."""

FIGURE_2B = """\
Predicted from lengths alone, no constant fitted: efficiency of `TokenBudget` over that of fixed
batches, 8 ranks. On the three public data sets it comes within 6 % of every figure. MM-Mix
gains more in the paper, where its short samples leave a GPU idle.

f_s is the share of samples below a quarter of the budget, as the paper defines it. By that it
cannot be 0.01 on ShareGPT4o, as printed, since half of those samples have fewer than 977 tokens,
and budgets were 4,096 and 12,288; nor 0.37 on MM-Mix. So equation 5, whose two coefficients were
solved from these two figures, is far off in all rows."""

TABLE_2 = """\
Speedups are over fixed batches, as predicted by tokens. They say how much of the gain is there at
*any* budget: most of it. What the budget adds in the paper is the filling of GPUs."""

TABLE_3 = """\
Preparing a sample takes 4 ms, and a step 60 ms, so that two workers are just enough. Samples wait
in two places: as finished steps, `prefetch`, and in the window, `buffer_size`. The clock starts
after 10 steps."""

FIGURE_3 = """\
```
            hellos of all                 all proposals are in, samples left
   HELLO ------------------> FILLING ------------------------------------------> SETTLING
                              |  ^                                                 |  |
        no rank has any left; |  |            receipts of all: steps are made      |  |
   "stop": one has none left  |  +-------------------------------------------------+  |
                              v                                                       |
                           FINISHED <-------------------------------------------------+
                                        "stop": a rank has no sample for a step
```

As the paper's machine this one is left only when all ranks know it. What the paper calls a skipped
round, which only fetches, is the wait in FILLING, without a message. [The
protocol](../protocol.md) has every message."""

TABLE_6 = """\
Lengths are of ShareGPT4o, the budget is 4,096 tokens. The empty rank gets fillers, with a loss of
zero."""

TABLE_12 = """\
Arithmetic on what the paper prints: samples per second of GMT-oracle once the time to build its
cache of lengths counts, after so many epochs, and if the data, the template or the augmentation
changes before each. ODB needs no cache. Where the paper calls GMT faster than ODB, on LLaVA 8B, its
cache has paid for itself only after eight epochs; on UltraChat at once."""

TABLE_17 = """\
`TokenBudget` with the paper's rule, on ShareGPT4o-like lengths and 8 ranks. Padding is not all that
a buffer is good for: with a small one ranks wait for each other much longer."""

TABLE_18 = """\
Relative error of a step's gradient, beside that of one batch of all samples of all ranks, over 120
steps; the model is a table of word scores, and words of short and long samples differ."""

TABLE_19 = """\
As for Table 3: with 0 or 1 worker preparing is slower than training, from 2 on it is not."""

TABLE_21 = """\
With equal shares no rank runs out before the others, so both endings make the same steps."""

MESSAGES = """\
The paper's package sends the counts and lengths of a whole buffer. [All
measurements](../figures.md#planning-and-the-loader) has the figures."""
