"""The data loader at work, in processes of this machine.

throughput     samples per second through workers, batcher and trainer
training       real training: seconds, waiting and held-out loss of four ways to form batches
late_images    memory and speed of pixels that are made late
first_batch    seconds to the first batch, and memory, beside torch and by each way to start
long_run       memory, files and speed over as many steps as you like, with exact resumes
diseases       the pictures of docs/diagnose.md: runs that lose time in one way each
"""
