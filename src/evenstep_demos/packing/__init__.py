"""``evenstep demo-packing``: real documents packed for pretraining, before and after.

    documents  the lengths of a source tree's files, or of a Parquet column, in random order
    options    what a user may choose, and the context window that suits the documents
    compare    original packing, WLB and the steady planner over the same documents
    result     the table, what it means, the picture's panels and the JSON object
    run        all of it, in order

Nothing is trained: what is shown is the work of micro-batches, from lengths in real tokens.
"""
