"""Between processes and between ranks: shared memory, pipes, and the exchange of messages."""
