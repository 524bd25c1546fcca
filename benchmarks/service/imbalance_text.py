"""The text of the page that `imbalance.py` writes, around its tables."""

HEAD = """# How even the service makes the ranks of a step

    python -m benchmarks.service.imbalance --data FOLDER --steps {steps} --markdown \
docs/service-figures.md

writes this page. It shows how uneven the cost of a step is over ranks when samples are dealt as
they come, and how even `balance` makes it.

Steps are drawn from a mixture of sources and planned as the service's planner does, from metadata
alone. The cost of a sample is that in the paper's models, in operations of a forward and a backward
pass: a language model of 12 B (45 layers of 4,608), and a vision transformer of 1 B (39 of 1,408)
or 2 B (48 of 1,664). Documents attend to nothing but themselves, images to nothing but themselves.
**Everything here is what this model of cost predicts; no time was measured.**

A rank has {micro_batches} micro-batches in a step. As many tokens are drawn as give each the number
that the tables of corpora name, and none may hold more than 1.25 times that. Documents that are
longer are cut into equal pieces. Each figure is the median of {repeats} runs of {steps} steps with
different seeds, with the 10th and 90th percentile in brackets.

- *{arrival}*: equally many samples in each micro-batch, in the order drawn, whatever their
  tokens: what a distributed sampler with a batch size does. It keeps to no limit of tokens.
- *{in_order}*: consecutive samples, about equally many tokens in each micro-batch: packing
  without `balance`, and the stronger yardstick.
- *inter* deals those micro-batches to ranks by cost, *intra* forms micro-batches by cost and deals
  them in turn, *both* does both at once; by the method named.
- *{bound}*: no plan can be below it, as samples stay whole.

"""

SUMMARY = """## In short

Imbalance over {ranks} data-parallel ranks: the sum over steps of the rank with most cost, over the
sum of the mean. The last two columns are predicted gains in throughput of the most even row.

{text}

{vision}

Over all text corpora and from 4 to 64 ranks, `both` leaves an imbalance of at most {worst_text}
with `greedy` and {worst_text_kk} with `karmarkar_karp`.

## Beside the paper

The paper's texts ([OVERLORD](https://arxiv.org/abs/2504.09844), section 2.3) are those of
COYO-700M. The named distribution `coyo-text` was fitted to what is said of them there and on the
data set's page; these are {drawn:,} draws, by seed:

{skew}

Section 7.2 reports throughput on 256 to 288 GPUs. Balancing multiplies it by 1.77 on average over
all models, contexts and both of its data sets (by 4.54 at most), and by 2.48 on coyo with both
modules balanced. The nearest that can be predicted is an image of any size beside its caption,
samples packed to the context, and the paper's way of balancing: the encoder over all ranks, the
backbone by dealing whole micro-batches. Gains are against *{in_order}*, with {ranks}
data-parallel ranks; *{bound}* is what no way of balancing the modules separately could exceed.

{paper}

- At 4,096 tokens, with images of any size, the prediction is near the report. With longer contexts
  the paper gains more. It does not say how large images may be, which is what decides here: a rank
  gets whole images. With images of up to 1,280 cells, a usual limit, the gain falls as the context
  grows, since more samples even out among themselves.
- The paper's runs also save what is not predicted here: memory, which without balance goes as far
  as failing, and waiting in a pipeline.
- Figure 3 shows micro-batches of one step on four data-parallel ranks, the largest of which has 3.2
  times the cost of the smallest. Without balance, of 4,096 tokens and with images of up to 4,096
  cells, they differ by {widest_arrival} times (*{arrival}*) or {widest_in_order} times
  (*{in_order}*) here.
- The paper has more than `coyo-text`: its second data set is not public, and it prints no numbers
  of how large images are. `coyo-image` follows the histograms on the data set's page.

## What these figures do not say

- **Seconds.** Operations are not time: short sequences run at a lower rate, and a rank also waits
  for communication. Measure the cost in your model with `evenstep profile`, and plan by that.
- **What the exchange costs.** Balanced separately, an image is often encoded on another rank than
  its text's, and embeddings travel there. *jointly* shows what is gained without.
- **Pipelines and sharded models.** *ranks* is right where ranks wait for each other once in a step.
  *lockstep* is right where they do after each micro-batch, as fully sharded models do, and there
  *intra* and *both* differ little. *micro-batches*, the largest of all over the mean, is what a
  pipeline with many stages feels.
- **Other data.** Captions and images are paired by chance. Sources of one file are often alike.
- **Learning.** All orders train on the same samples, but not in the same steps.
"""

CORPORA = """
## Corpora

Lengths are in tokens of the modalities together; images count cells of 28 x 28 pixels, each of them
a token for the backbone and four patches for the encoder. *cut* is how many documents were longer
than a micro-batch. A source's weight is the square root of its samples, where it is of a file.

{text}

{images}
"""

TEXT = """
## Text

Imbalance over ranks, over time, for 4 to {ranks} of them. Then for {ranks}: *ranks* once more with
the median and the 95th percentile of single steps, *micro-batches* and *lockstep* as above, and
predicted gains in throughput, by *ranks*.
"""

VISION = """
## Image and text

Two peers share the backbone of a data-parallel rank, and each encodes images on its own; so
the encoder has twice as many ranks. In the upper rows an image is encoded where its text is.
*separately* divides images among all ranks, and puts a wait between encoder and backbone. *jointly*
balances the sum of both modules' cost over data-parallel ranks, without a limit of tokens. *whole*
is the time of the slowest rank over that with all cost spread evenly. *{bound}* is that of
*separately*: without a wait in between, a rank with a very large image could have less else to do.
"""
