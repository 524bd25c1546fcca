"""Between processes and between ranks: shared memory, pipes, and the exchange of messages.

plain_values    states of datasets and samples for other ranks, without pickle
slab_file       the memory of a slab: an anonymous file, allocated or mapped
shared_memory   `Writer` and `Reader`: objects through recycled slabs. A worker writes and the
                batcher reads samples; the batcher writes and the trainer reads batches.
                An object is a small pickle and its tensors' bytes, and back without a copy
session         `Session`: one pass's messages between the batcher and the exchange thread;
                `Tick`: what ranks say to each other every half second, as bytes
rank_exchange   `RankExchange`: the exchange thread of the trainer process, over Gloo
peers           `Peer`: a rank's process and host; of context-parallel peers
                `GroupPlace` (trainer): one message per data-parallel rank;
                `WindowChecksum` (batcher): proof that peers hold the same samples
patience        `Patience`: says who is waited for, once a trainer has waited long;
                `Presence`: which ranks take part in a collective that does not end
lifelines       `Lifelines`: connections by which ranks notice that another one is lost
lifeline_sockets  `Meeting`: makes these connections, over TCP
first_rows      `RowComparison`: whether ranks share one order, or begin with the same rows
"""
