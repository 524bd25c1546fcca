"""``evenstep demo-service``: many sources to four ranks, on Ray, before and after balancing.

    options     what a user may choose
    folders     files grouped into sources by the folders that they lie in
    texts       Python code, or Parquet files, to sources
    stored      sources on disk, and a stored sample by its identity
    encode      stored rows to samples
    sizes       how big the model is and what a document costs it
    strategies  the two strategies, and the job of a run
    model       a small GPT over shards of packed rows
    trainer     what a rank does: takes steps of the service and trains on them
    serving     starts Ray and the ranks, then one service after the other
    messages    what ranks say
    delivery    was every sample delivered once, whole, and to the right ranks?
    figures     plans and records -> the figures of a run
    settings    sources, jobs and trainer of a demo
    result      the table, what it means and the JSON object
    run         all of it, in order

What planners and loaders run needs no torch: `encode`, `sizes`, `strategies`, and what they import.
"""
