"""``evenstep service``: sizes and runs a job, shows its status and its plans, and changes it."""

from __future__ import annotations

import json as json_module
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from evenstep.cli.output import note, print_json, print_plan, restart_text, status_line
from evenstep.cli.service_changes import Address, Name, WatchedWeights
from evenstep.cli.service_changes import register as register_changes
from evenstep.cli.service_seen import seen
from evenstep.cli.service_sizing import advise, loaders_of
from evenstep.cli.shared_options import Json, load_job
from evenstep.errors import ConfigurationError, EvenstepError, LoaderDiedError
from evenstep.files import read_json
from evenstep.service.start_options import ServiceFaults


class Backend(Enum):
    """What runs a job's roles."""

    ray = "ray"
    processes = "processes"


_EVERY = 1.0  # seconds between looks at a running job

_HELP = """Run a job of the service, see its status and its plans, and change it while it runs.

The service loads many sources for many ranks, on this machine or on a Ray cluster.

\b
Examples:
  evenstep service advise job.py --step-seconds 0.5
  evenstep service run job.py --backend processes --loaders 4
  evenstep service status
  evenstep service plan --step 12 --json
  evenstep service seen s3://bucket/seen --sample code/12/345
  evenstep service set-weights code=0.7 chat=0.3
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
    group.command("seen")(seen)
    group.command("advise")(advise)
    register_changes(group)
    app.add_typer(group, name="service")


def run(
    job: Annotated[
        str,
        typer.Argument(metavar="JOB", help="FILE.py with `job = es.Job(...)`, or module:name."),
    ],
    backend: Annotated[
        Backend, typer.Option(help="processes runs on this machine without Ray.")
    ] = Backend.ray,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster; by default one is started on this machine."),
    ] = None,
    name: Name = "job",
    loaders: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|auto|FILE",
            help="Source Loaders: a number; auto for as many as the job needs on this machine; or "
            "the file of a layout from `advise`.",
        ),
    ] = "1",
    standbys: Annotated[
        int, typer.Option(min=0, help="Processes that stand by to replace any loader at once.")
    ] = 0,
    patience: Annotated[
        float, typer.Option(help="Seconds in which loaders must have opened their sources.")
    ] = ServiceFaults.patience,
    hung_after: Annotated[
        float | None,
        typer.Option(
            help="Seconds after which a loader that says nothing is replaced; on Ray any role.",
            show_default="never",
        ),
    ] = None,
    warn_after: Annotated[
        float, typer.Option(help="Seconds after which a trainer that waits logs for whom.")
    ] = ServiceFaults.warn_after or 0.0,
    constructors: Annotated[
        int | None,
        typer.Option(
            help="Number of Data Constructors.", show_default="one per data-parallel group"
        ),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(help="CPUs that Ray reserves for each actor, such as 0.5.")
    ] = None,
    detached: Annotated[
        float | None,
        typer.Option(
            help="Leave the job running on Ray without this command, until no trainer has taken a "
            "step for so many seconds.",
            show_default="the job ends with this command",
        ),
    ] = None,
    placement: Annotated[
        Path | None,
        typer.Option(help="JSON file of where Ray places actors: see docs/service-operation.md."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="JSON file of the state to resume from, or the store of an earlier run. auto is "
            "the one that --store names; a run whose store is empty begins at step 0."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(help="Step to resume at from a store.", show_default="the last saved"),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or URL in which the run keeps its states.")
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(help="File for deaths, restarts and promotions, one line of JSON each."),
    ] = None,
    seen: Annotated[
        str | None,
        typer.Option(
            help="Folder or URL for a record of which samples went into which steps: see `seen`."
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="JSON file of weights by source, which is watched: see `set-weights`."),
    ] = None,
    step_log: Annotated[
        Path | None,
        typer.Option(
            help="File to which the client of rank 0 appends a line for each step, on its own "
            "machine: see `evenstep report`."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Port that serves /status as JSON and /healthz over HTTP; 0 is any. Requests for "
            "/status must carry the token in the environment variable EVENSTEP_STATUS_TOKEN, if "
            "that is set."
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on with --port; 0.0.0.0 is for other machines too, and needs "
            "a token."
        ),
    ] = "127.0.0.1",
    json: Json = False,
) -> None:
    """Run a job until its mixture ends, or until Ctrl-C.

    Trainers connect with evenstep.service.Client(address, name), each with its own RANK. --json
    prints the last status when the job has ended.

    \b
    Examples:
      evenstep service run job.py --backend processes --loaders 4 --standbys 1 --port 8099
      evenstep service run jobs.pretrain:job --address 10.0.0.1:6379 --name pretrain
      evenstep service run job.py --backend processes --step-log run.jsonl
      evenstep service run job.py --store s3://bucket/pretrain --resume s3://bucket/pretrain
    """
    from evenstep.service.start_options import LogOptions, RayOptions
    from evenstep.service.startup import start
    from evenstep.service.status_http import StatusEndpoint

    of_ray: dict[str, Any] = {"address": address, "cpus": cpus, "placement": placement}
    of_ray["detached"] = detached
    if backend is Backend.processes and any(each is not None for each in of_ray.values()):
        raise ConfigurationError(
            "--address, --cpus, --placement and --detached configure Ray; leave them out with "
            "--backend processes"
        )
    if detached is not None and (port, weights) != (None, None):
        raise ConfigurationError(
            "--port and --weights need this command to go on running; leave them out with "
            "--detached"
        )
    if placement is not None:
        of_ray["placement"] = read_json(placement, again="give options by role, as es.start takes")
    made = load_job(job)
    if resume == "auto":
        resume = _own_store(store, step)
    state = None if resume is None else _state(made, resume, step)
    if state is not None:
        note(f"resuming at step {state['step']:,}")
    note(f"starting {len(made.sources):,} sources for {len(made.tree):,} ranks")
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        service: Any = stack.enter_context(
            start(
                made,
                backend=backend.value,
                name=name,
                loaders=loaders_of(loaders),
                constructors=constructors,
                state=state,
                store=store,
                faults=ServiceFaults(
                    standbys=standbys,
                    patience=patience,
                    hung_after=hung_after,
                    warn_after=warn_after,
                ),
                logs=LogOptions(steps=step_log, events=events, seen=seen),
                **({"ray": RayOptions(**of_ray)} if backend is Backend.ray else {}),
            )
        )
        if port is not None:
            endpoint = stack.enter_context(StatusEndpoint(service, port=port, host=host))
            note(f"status at {endpoint.url}/status")
        if detached is not None:
            note(f"running; it ends {detached:g} s after the last step of a trainer")
            return
        note(f"running; trainers: es.Client({service.address!r}, {name!r})")
        if backend is Backend.ray:
            note(f"trainers on hosts without Ray: es.Client with a copy of {service.file}")
        watched = None if weights is None else WatchedWeights(weights, service.set_weights)
        last: dict[str, Any] = service.status()
        reported: list[Any] = []
        try:
            with status_line() as show:
                while not (last["ended"] or last["failed"] or service.asked_to_end.is_set()):
                    show(last)
                    for restart in last["restarts"]:
                        if restart not in reported:
                            note(restart_text(restart))
                    reported = last["restarts"]
                    time.sleep(_EVERY)
                    try:
                        if watched is not None:
                            watched.look()
                        last = service.status()
                    except LoaderDiedError:
                        raise
                    except EvenstepError as error:  # the registry is paused, and may continue
                        note(str(error))
                    if last["planner"].get("failed"):
                        break
        except KeyboardInterrupt:
            note("ended by Ctrl-C")
    if json:
        print_json(last)
    failed = last["failed"] or last["planner"].get("failed")
    if failed:
        raise EvenstepError(failed)


def _own_store(store: str | None, step: int | None) -> str | None:
    """What `--resume auto` resumes from, if there is anything."""
    from evenstep.service.planner.store.run_store import has_state

    if store is None:
        raise ConfigurationError("--resume auto resumes from the store: add --store URL")
    if step is not None or has_state(store):
        return store
    note(f"{store} has no state yet; beginning at step 0")
    return None


def _state(job: Any, resume: str, step: int | None) -> Any:
    """The state in a file, or in a store."""
    from evenstep.service.planner.planner_state import check_state
    from evenstep.service.planner.store.run_store import stored_state

    if not Path(resume).is_file():
        return stored_state(job, resume, step)
    if step is not None:
        raise ConfigurationError(
            f"--step {step} selects a step of a store, but {resume} holds the state of one step; "
            "leave it out"
        )
    state = read_json(resume, again="give the file that the state was written to")
    check_state(state)
    return state


def status(address: Address = "auto", name: Name = "job") -> None:
    """Print the status of a running job, as one JSON object.

    It has the waits of trainers, queues, bytes, imbalance and the samples drawn.

    \b
    Examples:
      evenstep service status
      evenstep service status --address 10.0.0.1:6379 --name pretrain
    """
    from evenstep.service.client.joining import attach

    with attach(address, name) as service:
        print_json(service.status())


def plan(
    step: Annotated[int, typer.Option(min=0, help="Number of the step.")],
    address: Address = "auto",
    name: Name = "job",
    json: Json = False,
) -> None:
    """Show the plan of a step.

    The plan says which samples the step draws, and where each of them goes. A step that no trainer
    has requested yet is planned now.

    \b
    Examples:
      evenstep service plan --step 12
      evenstep service plan --name pretrain --step 12 --json
    """
    from evenstep.service.client.joining import attach

    with attach(address, name) as service:
        found = service.plan(step)
    if found is None:
        raise ConfigurationError(
            f"there is no step {step} in job {name!r}, whose mixture ended before it"
        )
    if json:
        from evenstep.strategy import to_json

        print_json(json_module.loads(to_json(found)))
    else:
        print_plan(found)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end this process like Ctrl-C: after the block has cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        note(f"ended by {signal.Signals(number).name}")
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
