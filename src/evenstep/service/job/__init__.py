"""A job, as the process that starts it describes it, and what every role is made from.

job.py             `Job`: sources, mesh, strategy and options, checked when it is built; its
                   fingerprint, equal for jobs that plan the same
job_options.py     its options: what is drawn, measured, and held in memory; `Mesh`
collators.py       the collate functions that a job can name
sample_measure.py  lengths and supervised tokens of a sample
source_layout.py   `SourceLayout`: which loader owns which samples; `LoaderJob`: the part of a job
                   that one Source Loader is sent
roles.py           how many loaders and constructors a job has, and whom they serve
"""
