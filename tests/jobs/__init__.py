"""Drawn jobs, of every kind that users have: each must come to the gradient of its samples, or to a
clear refusal.

    job.py          `Job`: everything that a job is made of, as one line of Python
    kinds.py        models, tiny and real, and what their data holds
    forms.py        the samples as a dataset gives them, and datasets
    collates.py     collate functions
    draw.py         which parts suit each other; jobs in which all pairs of parts occur
    training.py     runs a job as its user would
    contents.py     finds every sample again in the batches, by value
    oracle.py       what a job must come to
    refusals.py     what evenstep refuses rightly
    __main__.py     runs one job alone: python -m jobs "Job(...)", in the folder tests
"""
