"""A job, as the process that starts it describes it, and what every role is made from.

job.py             `Job`: sources, mesh, strategy and options, checked when it is built
options.py         its options: what is drawn, measured, and held in memory
mesh.py            `Mesh`: sizes of the trainer's mesh
collators.py       the collate functions that a job can name
sample_measure.py  lengths and supervised tokens of a sample
source_layout.py   `SourceLayout`: which loader owns which samples
loader_job.py      `LoaderJob`: the part of a job that one Source Loader is sent
fingerprint.py     a digest that is equal for jobs that plan the same
roles.py           how many loaders and constructors a job has, and whom they serve
"""
