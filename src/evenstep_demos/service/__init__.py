"""``evenstep demo-service``: many sources to four ranks, on Ray, before and after balancing.

    command     the command line
    sources     Python code of this interpreter, as sources on disk
    strategies  the mesh, the two strategies, and the job of a run
    trainer     what a rank does: takes steps of the service and trains on them
    delivery    checks that every sample was delivered once, whole, and to the right ranks
    result      figures, the table and its meaning
    run         all of it, in order

Planners and loaders run without torch: so do `sources`, `strategies` and their imports.
"""
