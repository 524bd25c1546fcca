"""Data loaders side by side: the same work in each, written as its own documentation advises.

    install  makes the environments of peers, in .venv-peers, from their locked requirements
    lock     writes the locked requirements again
    run      measures, round by round, each peer once in a round; adds to out/peers/runs.jsonl
    show     the tables of the newest runs; with --page a summary in docs/peers.md

Workloads, on 1 and 2 ranks that have 2 reading processes together:

    padded   text, tokenized, in padded batches of 16 samples, or of 8,192 padded tokens if the
             peer forms batches by tokens
    images   JPEGs, decoded by PIL and resized to 224 x 224, in batches of 16
    mixture  30 sources of text, drawn by weight, in padded batches

What is measured:

    speed    samples/s and processor time of a sample, between a quarter and three quarters of
             the epoch, so that nothing read ahead counts; padding; how uneven two ranks are;
             seconds from the start of the processes to the first batch; peak memory
    resume   the state is saved at 40 % of an epoch and given to new processes: seconds to the next
             batch, samples lost and repeated, counted by id
    kill     a worker is killed at 40 % of an epoch: error, hang (60 s) or silence; samples lost
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.lib.report import machine, progress, show
from benchmarks.peers import tables
from benchmarks.peers.data import ROOT
from benchmarks.peers.install import install, lock
from benchmarks.peers.measure import KINDS
from benchmarks.peers.registry import PEERS, WORKLOADS

RUNS = ROOT / "runs.jsonl"
PAGE = Path("docs/peers.md")
ACTIONS = "install", "lock", "run", "show"


def arguments() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        epilog="example: python -m benchmarks.peers install torch grain && "
        "python -m benchmarks.peers run torch grain --workloads padded --ranks 1",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("action", choices=ACTIONS)
    result.add_argument("peers", nargs="*", metavar="PEER", help=f"all, or of {', '.join(PEERS)}")
    result.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    result.add_argument("--ranks", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    result.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["speed"])
    result.add_argument("--repeats", type=int, default=3, help="rounds")
    result.add_argument("--quick", action="store_true", help="few samples, one round")
    result.add_argument("--page", action="store_true", help="write a summary into docs/peers.md")
    return result


def run(options: argparse.Namespace) -> None:
    """Measures all cases; each is a line of `RUNS` as soon as it is known."""
    session, on = time.time(), machine()
    rounds = 1 if options.quick else options.repeats
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    cases = [
        (workload, ranks, kind)
        for workload in options.workloads
        for ranks in options.ranks
        for kind in options.kinds
    ]
    for workload, ranks, kind in cases:
        for number in range(rounds if kind == "speed" else 1):
            for name in options.peers:
                if tables.left_out(name, workload, ranks, kind):
                    continue
                progress(f"{workload}, {ranks} ranks, {kind}, round {number + 1}: {name}")
                case = {"peer": name, "workload": workload, "ranks": ranks, "kind": kind}
                figures = KINDS[kind](name, workload, ranks, options.quick)
                line = {**case, "quick": options.quick, "session": session, "round": number}
                with RUNS.open("a") as file:
                    file.write(json.dumps({**line, "figures": figures, "machine": on}) + "\n")
                if "error" in figures:
                    print(f"{name}, {workload}: {figures['error'][-1000:]}", file=sys.stderr)


def main() -> None:
    options = arguments().parse_args()
    if unknown := [name for name in options.peers if name not in PEERS]:
        sys.exit(f"no peer {', '.join(unknown)}: there are {', '.join(PEERS)}")
    options.peers = options.peers or list(PEERS)
    if options.action in ("install", "lock"):
        for name in options.peers:
            if PEERS[name].requirements:
                progress(f"{options.action}: {name}")
                (install if options.action == "install" else lock)(name)
        progress("")
        return
    if options.action == "run":
        run(options)
    lines = RUNS.read_text().splitlines() if RUNS.exists() else []
    found = tables.Found.of(map(json.loads, lines), options)
    if options.page:
        tables.write(found.summary(), PAGE)
    show(*found.tables(), as_json=False)


if __name__ == "__main__":
    main()
