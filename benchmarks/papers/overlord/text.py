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

FIGURE_14 = """\
Every client of 4 to 256 data-parallel groups, CP=2 and TP=8 in each, asks for one step. *With*
constructors, one for each group fetches the plan and the samples of its bucket once and builds the
batches of its 16 clients. *Without*, each client fetches for itself: 16 times the messages, each of
which has a plan that grows with the clients, so work at the planner grows with their square.

The planner answers the last client after all others, and so does a loader; the last column adds up
the busiest planner, loader and constructor, which is the least that the last client waits. Ray, or
sockets, and the network add to each message, and connections to each pair that talks: without
constructors all clients with all loaders."""

FIGURES_4_5 = """\
Every third source of four corpora, which `EVENSTEP_DATA` names, is a Parquet file of its own;
`evenstep.service.profile` measures what it costs a loader. The second table adds up the measured
memory where every worker opens every source, as a data-parallel loader does; the last column is
what loaders need that divide the sources."""

ALGORITHM_2 = """\
Pages with any number of images, four pages with images for each client. The paper packs single
images; the service keeps those of a sample together, so that embeddings of a sample come from one
client. With pages that hold hundreds of images this is uneven, as one page is more than a client's
share. `evenstep.strategy.image_balance` is the paper's way, for trainers that exchange images
themselves. Needs `EVENSTEP_DATA`, a folder with `mm_interleaved_docs.parquet`."""
