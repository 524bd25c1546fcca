"""What the page of LengthPoolSortDataset says between its tables."""

HEAD = """\
Each rank sorts a pool of samples by length and shuffles it with the same seed as all others, so
that all have like lengths at like times. The guide to it has few figures: what it says in words is
measured here. Lengths are those of ShareGPT4o, on 8 ranks, with one sample a step, of 4,096 samples
on each; waits are what a mean rank waits for the slowest, by tokens."""

MECHANISM = """\
A full pool is shuffled by `random.Random(42 + i)`, where i is the number of the sample that filled
it, and what is left at the end by a generator of the run. In evenstep a smaller last pool takes
evenly spaced places of a full one's permutation, so that ranks stay aligned to the end."""

SORT_AND_SHUFFLE = """\
Pools of 1,024. Sorting ends the waits; without a shuffle the steps at the end of a pool take many
times as long as those at its beginning. Times are in means of a sample, deviations are standard
ones. The guide asks whether the variance of step times has fallen: it has, since a step no longer
takes as long as the longest of 8 samples, though by less than the mean."""

POOL_SIZE = """\
What is left falls with about the square root of the pool, as errors of quantiles do. `evenstep
advise DATA --pool-sort` makes the table for your data, ranks and batch size, with the time to the
first batch and the memory by number of workers."""

WORKERS = """\
Torch's own DataLoader on 4 ranks. Worker w has the same permutation on all ranks, and workers take
turns alike, so steps stay aligned; the guide expects otherwise. With the same number of samples in
memory each worker's pool is smaller, and that costs. `evenstep.PoolSort` has one pool for all
workers."""
