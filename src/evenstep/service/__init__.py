"""The service: many sources feed the ranks of a trainer's mesh (OVERLORD, section 3).

A `Job` describes a run, and `start` runs it. Metadata and samples take different roads:

    Source Loaders --lengths--> Planner --plans--> Data Constructors       metadata: small, central
    Source Loaders --samples--> Data Constructors --batches--> clients     bulk data: never central

Each role is a plain class with a method for each message, and runs in one process with the others
(`LocalService`) or in others (`processes/`, `ray/`). Calls go one way: clients call constructors,
these call the planner and loaders, and the planner calls loaders. The files, in reading order:

The job, in the process that starts it

    job.py               `Job`: sources, mesh, strategy and options, checked when it is built
    mesh.py              `Mesh`: sizes of the trainer's mesh
    collators.py         the collate functions that a job can name
    sample_measure.py    lengths and supervised tokens of a sample
    job_fingerprint.py   a digest that is equal for jobs that plan the same
    startup.py           `start`, on Ray or in one process
    local.py             `LocalService`: all roles in one process
    backend_common.py    what both backends check alike
    status_http.py       `StatusEndpoint`: status over HTTP
    sizing/              what sources cost, measured, and the loaders that they need

Source Loader, one process for some sources or for a part of one

    source_loader.py     `SourceLoader`: describes, stages and hands out samples
    staged_steps.py      samples that constructors are to fetch
    sample_columns.py    the same, by field, as they are sent
    source_buffer.py     one source's samples, read and prepared ahead
    sample_window.py     what is held of it
    buffer_budget.py     the bytes that all buffers may hold
    buffer_filler.py     the threads that prepare samples ahead
    source_stream.py     one source's stored samples, those of other loaders left out
    preparer.py          transforms and measures samples, in worker processes if asked to
    sample_bytes.py      the memory that a sample takes
    source_layout.py     which loader owns which samples

Planner, one process

    planner.py           `Planner`: the plan of each step
    bad_samples.py       samples that were passed over
    loader_pool.py       all loaders as one provider of metadata
    trainer_reports.py   what trainers report, used in an order that timing does not decide
    plan_validation.py   checks that a strategy's plan uses the step's samples, each once
    planner_state.py     the planner's part of a checkpoint
    plan_log.py          plans that were made
    stored_planner.py    `StoredPlanner`: goes on where one that died has ended
    state_writer.py      writes its states in the background
    store/               what outlives the planner: its states, and what trainers reported

Data Constructor, one process for some data-parallel groups

    data_constructor.py  `DataConstructor`: the micro-batches of its clients
    step_fetcher.py      plans and samples, fetched once for all clients
    wanted_samples.py    what is fetched of a step
    batch_builder.py     one bucket: collated, and cut for context-parallel ranks
    subplan_builder.py   the batches of another module, and where its outputs go

Client, in each trainer process

    client.py            `RankClient`: steps, requested ahead
    service_step.py      `ServiceStep`: what comes with the micro-batches

Between roles

    handles.py           messages and replies
    metrics.py           how long trainers waited, and for what
    remote/              roles in other processes, whatever starts these
    transport/           sockets between processes

What starts roles in other processes, and how trainers join

    processes/           loaders are processes of this machine, all other roles threads
    ray/                 each role an actor on a cluster
    joining.py           `Client` for trainers' processes; `attach`

What a step draws, and how it is balanced, is decided in `evenstep.strategy` (`mixture/`,
`balance/`); the planner runs it.

Each name is imported on first use, so a process loads only what its role needs: torch in
constructors alone, and Ray only for `ray/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.data.source import Source as Source
    from evenstep.service.client import RankClient as RankClient
    from evenstep.service.collators import vision_fields as vision_fields
    from evenstep.service.data_constructor import DataConstructor as DataConstructor
    from evenstep.service.handles import Handle as Handle
    from evenstep.service.handles import LocalHandle as LocalHandle
    from evenstep.service.handles import Reply as Reply
    from evenstep.service.job import Job as Job
    from evenstep.service.job import Strategy as Strategy
    from evenstep.service.joining import Client as Client
    from evenstep.service.loader_pool import LoaderPool as LoaderPool
    from evenstep.service.local import LocalService as LocalService
    from evenstep.service.mesh import Mesh as Mesh
    from evenstep.service.plan_log import read_log as read_log
    from evenstep.service.planner import Planner as Planner
    from evenstep.service.sample_measure import SUPERVISED as SUPERVISED
    from evenstep.service.service_step import ServiceStep as ServiceStep
    from evenstep.service.service_step import StepDelivery as StepDelivery
    from evenstep.service.service_step import SubplanStep as SubplanStep
    from evenstep.service.sizing.job_profile import JobProfile as JobProfile
    from evenstep.service.sizing.loader_planning import plan_loaders as plan_loaders
    from evenstep.service.sizing.loader_scaling import LoaderScaling as LoaderScaling
    from evenstep.service.sizing.profiling import profile as profile
    from evenstep.service.source_layout import SourceLayout as SourceLayout
    from evenstep.service.source_loader import LoaderJob as LoaderJob
    from evenstep.service.source_loader import SourceLoader as SourceLoader
    from evenstep.service.staged_steps import Fetched as Fetched
    from evenstep.service.startup import start as start
    from evenstep.service.status_http import StatusEndpoint as StatusEndpoint
    from evenstep.service.store.runs import stored_state as stored_state
    from evenstep.strategy.loaders.source_stripe import SourceStripe as SourceStripe

_HOMES = {
    ".client": ("RankClient",),
    ".collators": ("vision_fields",),
    ".data_constructor": ("DataConstructor",),
    ".handles": ("Handle", "LocalHandle", "Reply"),
    ".job": ("Job", "Strategy"),
    ".loader_pool": ("LoaderPool",),
    ".local": ("LocalService",),
    ".mesh": ("Mesh",),
    ".plan_log": ("read_log",),
    ".planner": ("Planner",),
    ".joining": ("Client",),
    ".sample_measure": ("SUPERVISED",),
    ".service_step": ("ServiceStep", "StepDelivery", "SubplanStep"),
    ".sizing.job_profile": ("JobProfile",),
    ".sizing.loader_planning": ("plan_loaders",),
    ".sizing.loader_scaling": ("LoaderScaling",),
    ".sizing.profiling": ("profile",),
    ".source_layout": ("SourceLayout",),
    ".source_loader": ("LoaderJob", "SourceLoader"),
    ".staged_steps": ("Fetched",),
    ".startup": ("start",),
    ".store.runs": ("stored_state",),
    ".status_http": ("StatusEndpoint",),
    "evenstep.data.source": ("Source",),
    "evenstep.strategy.loaders.source_stripe": ("SourceStripe",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
