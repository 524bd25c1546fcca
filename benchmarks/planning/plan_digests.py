"""Digests of what every policy and packer plans on fixed seeds, one case a line.

A plan is a function of numbers, so a change that is to leave plans alone leaves these lines alone,
on any machine:

    python -m benchmarks.planning.plan_digests > before     # then make the change
    python -m benchmarks.planning.plan_digests | diff before -

After the case, a line has the digest of the samples of each step and rank (of policies that ranks
plan together; of nothing elsewhere) and that of the simulation's figures, to 12 digits and without
its times: NumPy's versions add numbers up in different orders.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from evenstep.cli import main as evenstep
from evenstep.protocol import RankProtocol
from evenstep.tools.simulate.yardsticks import COMPARED

LENGTHS = ("ultrachat", "llava", "sharegpt4o", "mm-mix", "coyo-text")
PACKING = ("", "--world-size 4", "--micro-batches 8")
SHOWN = 16  # hexadecimal digits of a digest
TIMED = ("_us_per_sample", "_ms", "_ms_max")
"""Ends of the names of figures that are times, which differ from run to run."""


def cases(seed: int, samples: int) -> Iterator[str]:
    """Arguments of ``evenstep simulate``."""
    for lengths, policy in itertools.product(LENGTHS, COMPARED):
        yield f"{policy} --lengths {lengths} --world-size 4 --samples {samples} --seed {seed}"
    for options in PACKING:
        count = 2 * samples
        yield f"workload-packing --lengths pretrain-128k --samples {count} --seed {seed} {options}"


def plan(arguments: Sequence[str]) -> str:
    """Digests of the steps and of the figures of one call of ``evenstep simulate``."""
    steps, printed = hashlib.sha256(), io.StringIO()
    incoming = RankProtocol.incoming

    def noted(protocol: RankProtocol, messages: Any) -> Any:
        planned = incoming(protocol, messages)
        for step in planned:
            members = [each.tolist() for each in step.micro_batches]
            steps.update(f"{protocol.rank} {step.index} {members}".encode())
        return planned

    with (
        mock.patch.object(RankProtocol, "incoming", noted),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        try:
            evenstep(["simulate", *arguments, "--json"])
        except SystemExit as end:
            if end.code:
                said = errors.getvalue().strip().splitlines()[-1]
                sys.exit(f"{' '.join(arguments)}: {said}")
    figures = json.dumps(lasting(json.loads(printed.getvalue())), sort_keys=True)
    return f"{steps.hexdigest()[:SHOWN]} {hashlib.sha256(figures.encode()).hexdigest()[:SHOWN]}"


def lasting(figures: Any) -> Any:
    """`figures` without those that are times, however deep they lie, and without last digits."""
    if isinstance(figures, dict):
        return {k: lasting(v) for k, v in figures.items() if not k.endswith(TIMED)}
    if isinstance(figures, float):
        return float(f"{figures:.12g}")
    return [lasting(each) for each in figures] if isinstance(figures, list) else figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m benchmarks.planning.plan_digests --only even --seeds 0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--samples", type=int, default=1500, help="of each rank")
    parser.add_argument("--only", help="cases whose arguments contain this text")
    options = parser.parse_args()
    for seed in options.seeds:
        for case in cases(seed, options.samples):
            if options.only is None or options.only in case:
                print(case, plan(case.split()), sep=": ", flush=True)


if __name__ == "__main__":
    main()
