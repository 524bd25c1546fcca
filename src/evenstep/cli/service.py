"""``evenstep service``: run a job on Ray, see how it does, and look at its plans."""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenstep.cli.output import note, print_json, print_table
from evenstep.cli.signals import ended_in_order
from evenstep.errors import ConfigurationError, EvenstepError

if TYPE_CHECKING:
    from evenstep.service.job import Job
    from evenstep.strategy import LoadingPlan

__all__ = ["register"]

Address = Annotated[
    str, typer.Option(help="Of the Ray cluster, as `run` prints it; auto is one on this machine.")
]
Name = Annotated[str, typer.Option(help="Of the job.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_EVERY = 1.0  # seconds between looks at a job that runs


_HELP = """Many sources to many ranks: run a job, see how it does, look at its plans.

\b
Examples:
  evenstep service run job.py --loaders 4
  evenstep service status --json
  evenstep service plan --step 12 --html step-12.html
"""


def register(app: typer.Typer) -> None:
    """Adds the commands to `app`."""
    group = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command("run")(run)
    group.command("status")(status)
    group.command("plan")(plan)
    app.add_typer(group, name="service")


def run(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="FILE.py with `job = es.Job(...)`, or module:name."),
    ],
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; without it one is started here.")
    ] = None,
    name: Name = "job",
    loaders: Annotated[int, typer.Option(help="Source Loader actors.")] = 1,
    constructors: Annotated[
        int | None, typer.Option(help="Data Constructor actors; one per data-parallel group.")
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(help="CPUs that Ray reserves for each actor, such as 0.5.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="JSON file of a state to go on from.")] = None,
    plan_log: Annotated[
        Path | None, typer.Option(help="File that plans are written to, a line of JSON each.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Tell the status as JSON over HTTP here: /status, /healthz. 0: any."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="To listen at with --port; 0.0.0.0 for other machines, too.")
    ] = "127.0.0.1",
    json: Json = False,
) -> None:
    """Run a job until its trainers have come to the end of the mixture, or Ctrl-C.

    Trainers take part by evenstep.service.Client(address, name), each with its own RANK.
    With --json the last status is printed when the job has ended.

    \b
    Examples:
      evenstep service run job.py --loaders 4 --port 8099
      evenstep service run jobs.pretrain:job --address 10.0.0.1:6379 --name pretrain
    """
    from evenstep.service.ray import RayService
    from evenstep.service.status_http import StatusEndpoint

    made = _job(job)
    state = None if resume is None else json_module.loads(resume.read_text())
    note(f"starting {len(made.sources):,} sources for {len(made.tree):,} ranks")
    with ExitStack() as stack:
        stack.enter_context(ended_in_order())
        service = stack.enter_context(
            RayService(
                made,
                address=address,
                name=name,
                loaders=loaders,
                constructors=constructors,
                cpus=cpus,
                state=state,
                plan_log=plan_log,
            )
        )
        if port is not None:
            endpoint = stack.enter_context(StatusEndpoint(service, port=port, host=host))
            note(f"status at {endpoint.url}/status")
        note(f"running; trainers: es.Client({service.address!r}, {name!r})")
        last: dict[str, Any] = service.status()
        try:
            with _shown() as show:
                while not (last["ended"] or last["failed"]):
                    show(last)
                    time.sleep(_EVERY)
                    last = service.status()
                    if last["planner"].get("failed"):
                        break
        except KeyboardInterrupt:
            note("ended by Ctrl-C")
    if json:
        print_json(last)
    else:
        _print_status(last)
    failed = last["failed"] or last["planner"].get("failed")
    if failed:
        raise EvenstepError(failed)


def status(address: Address = "auto", name: Name = "job", json: Json = False) -> None:
    """How a running job does: waits of trainers, queues, bytes, imbalance, what was drawn.

    \b
    Examples:
      evenstep service status
      evenstep service status --address 10.0.0.1:6379 --name pretrain --json
    """
    from evenstep.service.ray import attach

    with attach(address, name) as service:
        told = service.status()
    if json:
        print_json(told)
    else:
        _print_status(told)


def plan(
    step: Annotated[int, typer.Option(min=0, help="Which step.")],
    address: Address = "auto",
    name: Name = "job",
    log: Annotated[
        Path | None, typer.Option(help="File that `run --plan-log` wrote, instead of a job.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Page to write the plan to.")] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid chart.")] = False,
    json: Json = False,
) -> None:
    """What a step draws, and where each sample goes.

    A step that no trainer has asked for yet is planned now.

    \b
    Examples:
      evenstep service plan --step 12 --html step-12.html
      evenstep service plan --step 12 --log plans.jsonl --mermaid
    """
    if mermaid and json:
        raise ConfigurationError("--mermaid and --json each print the plan; choose one")
    found = _plan(step, address, name, log)
    if html is not None:
        from evenstep.tools.report.plan_page import plan_page

        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(plan_page(found))
        note(f"wrote {html}")
    if mermaid:
        from evenstep.strategy import mermaid as chart

        print(chart(found), end="")
    elif json:
        from evenstep.strategy import to_json

        print_json(json_module.loads(to_json(found)))
    elif html is None:
        _print_plan(found)


def _job(name: str) -> Job:
    """
    Raises:
        ConfigurationError: it names no job.
    """
    from evenstep.cli.user_objects import load_object
    from evenstep.service.job import Job

    found = load_object(name if ":" in name else f"{name}:job")
    if not isinstance(found, Job):
        raise ConfigurationError(
            f"{name!r} is a {type(found).__name__}; name an evenstep.service.Job"
        )
    return found


def _plan(step: int, address: str, name: str, log: Path | None) -> LoadingPlan:
    if log is not None:
        from evenstep.service.plan_log import read_log

        if not log.is_file():
            raise ConfigurationError(f"there is no file {log}")
        found, where = read_log(log, step), str(log)
    else:
        from evenstep.service.ray import attach

        with attach(address, name) as service:
            found, where = service.plan(step), f"job {name!r}, whose mixture has ended before it"
    if found is None:
        raise ConfigurationError(f"there is no step {step} in {where}")
    return found


# What is printed


def _print_status(told: Mapping[str, Any]) -> None:
    steps, planner = told["steps"], told["planner"]
    rows = {
        "state": "failed" if told["failed"] else "ended" if told["ended"] else "running",
        "mesh": ", ".join(f"{axis}={size}" for axis, size in told["mesh"].items()),
        "steps planned": f"{planner.get('step', 0):,}",
        "trainers": f"{len(told['clients']):,}, {_reached(told)}",
    }
    if steps["steps"]:
        exposed = steps["exposed_seconds"]
        rows["exposed wait per step"] = (
            f"{exposed['mean']:.3f} s mean, {exposed['p95']:.3f} p95, {exposed['first']:.2f} first"
        )
        stages = steps["stage_seconds"].items()
        rows["spent on a step"] = ", ".join(f"{name} {s:.3f} s" for name, s in stages)
        rows["imbalance"] = f"{steps['imbalance']:.3f}, {steps['imbalance_before']:.3f} before"
    rows["queued samples"] = f"{_queued(told):,}"
    for road, count in told["bytes"].items():
        rows[f"bytes {road.replace('_', ' ')}"] = f"{count:,}"
    for source, count in sorted(planner.get("drawn", {}).items(), key=lambda each: -each[1])[:12]:
        rows[f"drawn from {source}"] = f"{count:,}"
    if len(planner.get("drawn", {})) > 12:
        rows["drawn from others"] = f"{len(planner['drawn']) - 12:,} sources, see --json"
    print_table(f"job {told['name']}", rows)
    if told["failed"]:
        note(str(told["failed"]))


def _reached(told: Mapping[str, Any]) -> str:
    steps = [client["step"] for client in told["clients"]]
    if not steps:
        return "none yet"
    return f"at step {min(steps):,}" + (f" to {max(steps):,}" if max(steps) > min(steps) else "")


def _queued(told: Mapping[str, Any]) -> int:
    held = [sum(each.get("sources", {}).values()) for each in told["loaders"]]
    held += [each.get("staged_samples", 0) for each in told["loaders"]]
    return int(sum(held))


def _print_plan(found: LoadingPlan) -> None:
    rows = {
        "samples": f"{len(found):,}",
        "carried to the next step": f"{len(found.carried):,}",
        "buckets": f"{found.buckets:,} at {found.axis}, {found.micro_batches} micro-batches each",
        "imbalance": f"{found.imbalance:.3f}, {found.imbalance_before:.3f} before",
    }
    for name, subplan in found.subplans.items():
        rows[f"imbalance of {name}"] = (
            f"{subplan.imbalance:.3f}, {subplan.imbalance_before:.3f} before"
        )
    counts = zip(found.samples.sources, found.samples.counts().tolist())
    for source, count in sorted(counts, key=lambda each: -each[1])[:12]:
        rows[f"drawn from {source}"] = f"{count:,}"
    print_table(f"step {found.step}", rows)


@contextmanager
def _shown() -> Iterator[Any]:
    """Gives a function that shows a status: a line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda told: None
        return
    from rich.console import Console

    with Console(stderr=True).status("waiting for trainers") as line:

        def show(told: Mapping[str, Any]) -> None:
            steps = told["steps"]
            if not steps["steps"]:
                return
            line.update(
                f"step {steps['last_step']:,} of {len(told['clients'])} trainers, exposed wait "
                f"{steps['exposed_seconds']['last']:.3f} s, imbalance {steps['imbalance']:.3f}, "
                f"{_queued(told):,} samples queued"
            )

        yield show
