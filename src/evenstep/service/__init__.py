"""The service: many sources to the ranks of a trainer's mesh (OVERLORD, section 3).

A `Job` says what there is, and `start` runs it. The roles are plain classes, each with a method for
each message: `SourceLoader`, `Planner`, `DataConstructor` and `Client`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evenstep.service.client import Client
from evenstep.service.collating import vision_fields
from evenstep.service.data_constructor import DataConstructor
from evenstep.service.handles import Handle, LocalHandle, Reply
from evenstep.service.job import Job, Strategy
from evenstep.service.layout import Layout, SourceShare
from evenstep.service.loaders import Loaders
from evenstep.service.local import LocalService
from evenstep.service.measuring import SUPERVISED
from evenstep.service.mesh import Mesh
from evenstep.service.plan_log import read_log
from evenstep.service.planner import Planner
from evenstep.service.service_step import Parcel, ServiceStep, SubplanStep
from evenstep.service.source_loader import Fetched, SourceLoader
from evenstep.service.start import start
from evenstep.sources.source import Source

if TYPE_CHECKING:
    from evenstep.service.ray import RemoteClient as RemoteClient

__all__ = [
    "SUPERVISED",
    "Client",
    "DataConstructor",
    "Fetched",
    "Handle",
    "Job",
    "Layout",
    "Loaders",
    "LocalHandle",
    "LocalService",
    "Mesh",
    "Parcel",
    "Planner",
    "RemoteClient",
    "Reply",
    "ServiceStep",
    "Source",
    "SourceLoader",
    "SourceShare",
    "Strategy",
    "SubplanStep",
    "read_log",
    "start",
    "vision_fields",
]


def __getattr__(name: str) -> Any:
    if name != "RemoteClient":
        raise AttributeError(f"module 'evenstep.service' has no attribute {name!r}")
    # Not before it is asked for, so that jobs on one machine need no Ray.
    return import_module("evenstep.service.ray").RemoteClient
