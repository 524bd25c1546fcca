"""``evenstep service seen``: which samples went into which steps, and to which ranks."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

import typer

from evenstep.cli.output import note, print_json
from evenstep.cli.shared_options import Json
from evenstep.errors import ConfigurationError


def seen(
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder or URL of `run --seen`.")],
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE/SHARD/INDEX", help="Print the steps and ranks that had this sample."
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Print all samples of this step, by rank.")
    ] = None,
    all_runs: Annotated[
        bool,
        typer.Option(
            "--all-runs",
            help="Also steps of runs that do not count: of a run that was resumed from an earlier "
            "step, those from there on.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Print which steps and ranks had a sample, or which samples a step had.

    It says what was planned. The steps that count are those of the last run, and of the runs whose
    states it began with. Ranks are data-parallel. The last steps may be planned and not trained on.

    \b
    Examples:
      evenstep service seen s3://bucket/seen --sample code/12/345
      evenstep service seen s3://bucket/seen --step 1000 --json
    """
    from evenstep.service.planner.seen import SeenStore, sample_named

    if (sample is None) == (step is None):
        raise ConfigurationError("give either --sample SOURCE/SHARD/INDEX or --step NUMBER")
    of = None if sample is None else sample_named(sample)
    opened = SeenStore(store)
    rows = opened.of_step(step or 0) if of is None else opened.of_sample(of)
    for row in rows:
        row["counts"] = opened.counts(row["run"], row["step"])
    rows = [row for row in rows if all_runs or row["counts"]]
    recorded = [
        {"run": run, "first": steps[0], "last": steps[-1], "missing": opened.missing(run)}
        for run, steps in reversed(opened.counting.items())
        if steps
    ]
    if step is not None and not rows:
        raise ConfigurationError(
            f"there is no step {step:,} in {store}, which has {_text(recorded)}; a running job "
            "writes every 64 steps or 300 seconds"
        )
    if json:
        about = {"step": step} if step is not None else {"sample": sample}
        print_json({**about, "seen": _by_rank(rows) if of is None else rows, "recorded": recorded})
        return
    if of is None:
        _print_step(rows)
    else:
        _print_sample(rows, str(sample))
    note(f"recorded: {_text(recorded)}; the last ones may be planned and not trained on")


def _print_step(rows: list[dict[str, Any]]) -> None:
    for each in _by_rank(rows):
        for rank, samples in each["ranks"].items():
            print(f"rank {rank}, {_run(each)}: {' '.join(samples)}")


def _print_sample(rows: list[dict[str, Any]], sample: str) -> None:
    for row in rows:
        print(f"step {row['step']:,}, rank {row['rank']}, {_run(row)}")
    if not rows:
        note(f"no step had {sample}")


def _by_rank(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples of a step by run and rank, each as --sample takes it."""
    found: dict[tuple[str, bool], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        name = f"{row['source']}/{row['shard']}/{row['index']}"
        found[row["run"], row["counts"]][row["rank"]].append(name)
    return [
        {"run": run, "counts": counts, "ranks": ranks} for (run, counts), ranks in found.items()
    ]


def _run(row: dict[str, Any]) -> str:
    return row["run"] if row["counts"] else f"{row['run']}, which does not count"


def _text(recorded: list[dict[str, Any]]) -> str:
    texts = []
    for each in recorded:
        gaps = "".join(f", without {first:,} to {last:,}" for first, last in each["missing"])
        texts.append(f"steps {each['first']:,} to {each['last']:,} of {each['run']}{gaps}")
    return "; ".join(texts)
