"""The service: many sources feed the ranks of a trainer's mesh (OVERLORD, section 3).

A `Job` describes a run, and `start` runs it. Metadata and samples take different paths:

    Source Loaders --lengths--> Planner --plans--> Data Constructors       metadata: small, central
    Source Loaders --samples--> Data Constructors --batches--> clients     bulk data: never central

Each role is a plain class with a method for each message. Calls go one way: clients call
constructors, constructors call the planner and the loaders, and the planner calls loaders. The
folders, in reading order, are named after the process in which their code runs:

    startup.py       `start`: runs a job on Ray, in processes or in this thread
    start_options.py its options: faults, logs and Ray
    job/             `Job`: sources, mesh, strategy and options; what every role is made from
    source_loader/   Source Loader: one process for some sources, or for a part of one
    planner/         Planner: one process; its states, and what happens when it dies
    constructor/     Data Constructor: one process for some data-parallel groups
    client/          the client in each trainer process
    registry/        the registry of a running job: finds and watches roles
    remote/          what all processes of a job share: handles, hosts of roles, the job's state
    messages.py      messages and replies between roles
    transport/       sockets between processes
    backends/        what starts roles: in one thread, as local processes, or as actors of Ray
    sizing/          what sources cost, measured, and the loaders that they need
    status_http.py   `StatusEndpoint`: a running job's status over HTTP

`evenstep.strategy` decides what a step draws (`mixture/`) and how it is balanced (`balance/`); the
planner runs it.

Each name is imported on first use, so a process loads only what its role needs: torch in
constructors alone, and Ray only for `backends/ray/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.data.block_cache import BlockCache as BlockCache
    from evenstep.data.source import Source as Source
    from evenstep.service.backends.local import LocalService as LocalService
    from evenstep.service.client.joining import Client as Client
    from evenstep.service.client.joining import attach as attach
    from evenstep.service.client.rank_client import RankClient as RankClient
    from evenstep.service.client.service_step import ServiceStep as ServiceStep
    from evenstep.service.client.service_step import StepDelivery as StepDelivery
    from evenstep.service.client.service_step import SubplanStep as SubplanStep
    from evenstep.service.constructor.data_constructor import DataConstructor as DataConstructor
    from evenstep.service.job.collators import vision_fields as vision_fields
    from evenstep.service.job.job import Job as Job
    from evenstep.service.job.job import Strategy as Strategy
    from evenstep.service.job.job_options import DrawOptions as DrawOptions
    from evenstep.service.job.job_options import MeasureOptions as MeasureOptions
    from evenstep.service.job.job_options import Mesh as Mesh
    from evenstep.service.job.job_options import ServiceMemory as ServiceMemory
    from evenstep.service.job.sample_measure import SUPERVISED as SUPERVISED
    from evenstep.service.job.source_layout import LoaderJob as LoaderJob
    from evenstep.service.job.source_layout import SourceLayout as SourceLayout
    from evenstep.service.messages import Handle as Handle
    from evenstep.service.messages import LocalHandle as LocalHandle
    from evenstep.service.messages import Reply as Reply
    from evenstep.service.planner.loader_pool import LoaderPool as LoaderPool
    from evenstep.service.planner.planner import Planner as Planner
    from evenstep.service.planner.store.run_store import stored_state as stored_state
    from evenstep.service.sizing.job_profile import JobProfile as JobProfile
    from evenstep.service.sizing.job_profile import profile as profile
    from evenstep.service.sizing.loader_planning import LoaderScaling as LoaderScaling
    from evenstep.service.sizing.loader_planning import plan_loaders as plan_loaders
    from evenstep.service.source_loader.source_loader import SourceLoader as SourceLoader
    from evenstep.service.source_loader.staged_steps import Fetched as Fetched
    from evenstep.service.start_options import LogOptions as LogOptions
    from evenstep.service.start_options import RayOptions as RayOptions
    from evenstep.service.start_options import ServiceFaults as ServiceFaults
    from evenstep.service.startup import start as start
    from evenstep.service.status_http import StatusEndpoint as StatusEndpoint
    from evenstep.strategy.loaders.loader_layout import SourceStripe as SourceStripe

__getattr__, __dir__ = lazy_names(__name__)
