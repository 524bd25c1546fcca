"""What the chapter on OVERLORD says between its tables."""

HEAD = """\
A data loading service for training on many sources: roles, plans and balance."""

FIGURE_12 = """\
Steps of `coyo-image` with `coyo-text`, five sources, packed to the context and planned by the
service's planner: *vanilla* packs samples in the order drawn; *backbone balanced* deals
micro-batches to data-parallel ranks by the backbone's cost; *both balanced* deals images to all
ranks by the encoder's cost as well. These are the paper's three systems. A gain is the predicted
time of vanilla over that of the row, medians over seeds. The last columns are each one's time over
that with all cost spread evenly, so the first of them is what no balancing could exceed.

As in the paper, the encoder's images are what is uneven, and a larger encoder gains more. With
experts, a token computes less beside its attention, which gains more too. The paper gains most at
16,384 tokens, where a rank without balance also ran out of memory; here one image that fills the
context is more than a rank's share of a step, and no plan can divide it. `navit_data` is not
public."""
