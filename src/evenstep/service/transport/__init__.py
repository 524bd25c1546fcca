"""Messages between the processes of a service over ZeroMQ: sockets of the same user on one machine,
and encrypted TCP between machines.

    frames.py         values as frames: the pickled rest, and each large array or tensor on its own
    endpoint.py       where a role is reached, by which keys, and the files that say so
    server.py         `Server`: takes messages for a role, and sends its answers
    connection.py     `Connections`: sends messages to a role, and notices at once when it is gone

A message is a list of frames, and so is its answer. A connection carries one message at a time, so
what a slow receiver has not taken yet is bounded by what it has asked for.

How often a token is copied on its way from a Parquet file to a trainer's tensor: decoded into an
Arrow buffer, made into an array by the transform, written to and read from the socket to the
constructor, and collated. A trainer in another process than its constructor adds a write and a read
of the batch. Large frames are neither pickled nor copied besides.
"""
