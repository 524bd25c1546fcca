"""``evenstep demo-service``: many sources to four ranks, on Ray, before and after balancing.

    command     the command line
    options     what a user may choose
    folders     files grouped into sources by the folders that they lie in
    texts       Python code, or Parquet files, to sources
    stored      sources on disk, and a stored sample by its identity
    encode      stored rows to samples
    sizes       the size of the models, and the cost of a document in them
    strategies  the two strategies, and the job of a run
    trainer     what a rank does: takes steps of the service and trains on them
    serving     starts Ray and the ranks, then one service after the other
    messages    the messages of ranks
    delivery    checks that every sample was delivered once, whole, and to the right ranks
    figures     plans and records -> the figures of a run (sources_plot: draws of each source)
    vision/     the same with pictures, whose encoder is balanced apart from the backbone
    settings    sources, jobs and trainer of a demo
    result      the table, its meaning and the JSON object
    run         all of it, in order

Planners and loaders run without torch: so do `encode`, `sizes`, `strategies` and their imports.
"""
