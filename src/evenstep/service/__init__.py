"""The service: many sources to the ranks of a trainer's mesh (OVERLORD, section 3).

A `Job` says what there is, and `start` runs it. The roles are plain classes, each with a method for
each message: `SourceLoader`, `Planner`, `DataConstructor` and `RankClient`. `Client` is the last of
these in a trainer's process, of a service on Ray.

Each name is imported on first use: a process that plays one role loads what that role needs, which
is torch for constructors alone and Ray for none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from evenstep.service.loader_job import LoaderJob as LoaderJob
    from evenstep.service.loader_pool import LoaderPool as LoaderPool
    from evenstep.service.local import LocalService as LocalService
    from evenstep.service.mesh import Mesh as Mesh
    from evenstep.service.plan_log import read_log as read_log
    from evenstep.service.planner import Planner as Planner
    from evenstep.service.ray.client import Client as Client
    from evenstep.service.sample_measure import SUPERVISED as SUPERVISED
    from evenstep.service.service_step import ServiceStep as ServiceStep
    from evenstep.service.service_step import StepDelivery as StepDelivery
    from evenstep.service.service_step import SubplanStep as SubplanStep
    from evenstep.service.source_layout import SourceLayout as SourceLayout
    from evenstep.service.source_layout import SourceStripe as SourceStripe
    from evenstep.service.source_loader import Fetched as Fetched
    from evenstep.service.source_loader import SourceLoader as SourceLoader
    from evenstep.service.startup import start as start
    from evenstep.service.status_http import StatusEndpoint as StatusEndpoint

_HOME_OF = {
    "SUPERVISED": "evenstep.service.sample_measure",
    "Client": "evenstep.service.ray.client",
    "DataConstructor": "evenstep.service.data_constructor",
    "Fetched": "evenstep.service.source_loader",
    "Handle": "evenstep.service.handles",
    "Job": "evenstep.service.job",
    "SourceLayout": "evenstep.service.source_layout",
    "LoaderJob": "evenstep.service.loader_job",
    "LoaderPool": "evenstep.service.loader_pool",
    "LocalHandle": "evenstep.service.handles",
    "LocalService": "evenstep.service.local",
    "Mesh": "evenstep.service.mesh",
    "StepDelivery": "evenstep.service.service_step",
    "Planner": "evenstep.service.planner",
    "RankClient": "evenstep.service.client",
    "Reply": "evenstep.service.handles",
    "ServiceStep": "evenstep.service.service_step",
    "Source": "evenstep.data.source",
    "SourceLoader": "evenstep.service.source_loader",
    "SourceStripe": "evenstep.service.source_layout",
    "StatusEndpoint": "evenstep.service.status_http",
    "Strategy": "evenstep.service.job",
    "SubplanStep": "evenstep.service.service_step",
    "read_log": "evenstep.service.plan_log",
    "start": "evenstep.service.startup",
    "vision_fields": "evenstep.service.collators",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'evenstep.service' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
