"""Between processes and between ranks: shared memory, pipes, and the exchange of messages.

codec           an object -> a small pickle and its tensors' bytes, and back without a copy
slab_file       the memory of a slab: an anonymous file, allocated or mapped
shared_memory   `Writer` and `Reader`: objects through recycled slabs. A worker writes and the
                batcher reads samples; the batcher writes and the trainer reads batches
session         `Session`: one pass's messages between the batcher and the exchange thread
rank_exchange   `RankExchange`: the exchange thread of the trainer process, over Gloo
cp_peers        `GroupPlace` (trainer): one message per data-parallel rank;
                `WindowChecksum` (batcher): proof that peers hold the same samples
"""
