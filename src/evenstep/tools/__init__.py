"""Tools for before and after a training. Each folder answers one question.

```
simulate/      What does a policy make of these lengths? Runs it without a GPU.
advise/        What would I gain on my data, and which settings should I take?
profile/       What does my model cost on my hardware? Measures one layer.
doctor/        What on this machine would bite a job?
report/        How do I show it? Tables as text, plots as files.
```
"""
