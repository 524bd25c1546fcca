"""The data loader at work, in processes of this machine.

throughput     samples per second through workers, batcher and trainer
training       real training: seconds, waiting and held-out loss of four ways to form batches
late_images    memory and speed of pixels that are made late
first_batch    seconds to the first batch, and memory, beside torch and by each way to start
long_run       memory, files and speed over as many steps as you like, with exact resumes
fault_times    seconds from a fault to the error that names it, on every rank
fault_cases    what goes wrong in its jobs
diseases       the pictures of docs/diagnose.md: runs that lose time in one way each
auto_memory    how close max_tokens="auto" comes to its share of memory
"""
