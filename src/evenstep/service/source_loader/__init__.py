"""Source Loader: reads, prepares and buffers the samples of the sources that it owns.

source_loader.py   `SourceLoader`: describes samples, stages them and hands them out
staged_steps.py    samples that constructors will fetch, and how they are sent
source_buffer.py   one source's samples, read and prepared ahead
sample_window.py   the samples that such a buffer holds, and the bytes of all buffers
buffer_filler.py   the threads that prepare samples ahead
source_stream.py   one source's stored samples, without those of other loaders
preparer.py        transforms and measures samples, in worker processes if asked to
"""
