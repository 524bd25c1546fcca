"""One table of data loaders, side by side: the same work in each, as its own documentation advises.

Every peer has an environment of its own, in .venv-peers; every measurement is a new job of one or
two rank processes in it. ``python -m benchmarks.peers --help`` says what is measured.

registry   the peers, and what each needs
install    environments from the locked requirements in locks/
data       the text, pictures and sources that all peers read
work       the work itself, which all adapters call: tokenize, pad, decode; what a rank is told
rank       a rank process: builds the loader, reads it, writes what it saw; runs in the peer's own
           environment, so it imports nothing but `work` and the adapter
jobs       rank processes from outside: start, memory, a killed worker, the end
measure    figures of jobs: speed, resume, what follows when a worker dies
tables     figures as tables, and their summary in docs/peers.md
adapters/  a module for each peer
"""
