"""``evenstep demo-packing``: real documents packed for pretraining, in three ways.

    command    the command line
    documents  the lengths of a source tree's files, or of a Parquet column, in random order
    options    what a user may choose, and the context window that suits the documents
    compare    original packing, WLB and the steady planner over the same documents
    result     the table, its meaning, the picture's panels and the JSON object
    run        all of it, in order

Nothing is trained: the demo shows the cost of micro-batches, predicted from real lengths.
"""
