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
