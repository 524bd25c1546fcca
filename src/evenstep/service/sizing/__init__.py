"""What the sources of a job cost, measured; and the layout of loaders that follows.

job_profile        `JobProfile`: the measurements; `profile`: has sources measured, in processes of
                   their own
measuring_main     that process, which forks one for each source
source_measuring   what is measured of one source, and how
loader_planning    `plan_loaders`: from a profile to a layout, by `evenstep.strategy.loaders`;
                   `LoaderScaling`: the loaders that a running job needs as weights move
"""
