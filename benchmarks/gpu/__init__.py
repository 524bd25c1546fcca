"""What a GPU says: `python -m benchmarks.gpu`, within ten minutes on one.

`__main__` runs parts, each in a process of its own and within its own time, and writes each row as
it comes, to one file. A part that fails or is stopped ends no other.

model     a decoder, and batches of random tokens
plans     whole epochs of several ranks, as lists of groups, and some of their steps
steps     parts "text", "many-ranks" and "long": groups of all ranks, timed one after the other
training  part "loader": from the loader to the device, with the wait for data
page      docs/gpu.md from stored results
results/  the files of devices

Part "kernels" runs the tests that are marked `gpu`. ``--tiny`` does all on the CPU, to try it.
"""
