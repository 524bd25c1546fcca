"""``evenstep demo-service``: many sources to four ranks, on Ray, before and after balancing.

    command     the command line
    options     what a user may choose
    sources     Python code, or Parquet files, to sources on disk
    strategies  the two strategies, and the job of a run
    trainer     what a rank does: takes steps of the service and trains on them
    delivery    checks that every sample was delivered once, whole, and to the right ranks
    vision/     the same with pictures, whose encoder is balanced apart from the backbone
    result      figures, the table, its meaning, the pictures and the JSON object
    run         all of it, in order

Planners and loaders run without torch: so do `sources`, `strategies` and their imports.
"""
