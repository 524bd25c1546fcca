"""Deliberate faults in the service. The simulation must find each."""

from __future__ import annotations

from evenstep.service.backends.ray.actors import LoaderActor
from evenstep.service.backends.ray.locators import RayLocator
from evenstep.service.client.rank_client import RankClient
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.constructor.step_fetcher import StepFetcher
from evenstep.service.planner.loader_pool import LoaderPool
from evenstep.service.planner.planner import Planner
from evenstep.service.planner.stored_planner import StoredPlanner
from evenstep.service.planner.strategy_steps import StrategySteps
from evenstep.service.planner.trainer_reports import Signals
from evenstep.service.registry.common_state import CommonState
from evenstep.service.registry.pace import Pace
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.handles import RemoteReply
from evenstep.service.source_loader.source_stream import SourceStream
from mutation import Mutation

SERVICE_MUTATIONS = (
    Mutation(
        "steps are dropped while a client needs them",
        DataConstructor._update_taken,
        "not any(_fetches(plan, each) for each in waiting) -> len(waiting) < len(self.clients)",
        near=118,
    ),
    Mutation("releases are lost", StepFetcher._fetch_from, "_messages(ended) -> []", near=7),
    Mutation("a planned step is planned again", Planner.plan, "step < self._step -> False"),
    Mutation(
        "carried samples are forgotten",
        StrategySteps.plan,
        "Windows.of(plan.carried) -> Windows.of(plan.carried[:0])",
        near=40,
    ),
    Mutation(
        "reports that came late are not in states",
        Planner._with_reports,
        "*self._signals.to_list() ->",
        near=42,
    ),
    Mutation("reports count too soon", Signals.__init__, "prefetch + 3 -> prefetch + 2", near=84),
    Mutation(
        "loaders that share a source are out of step",
        LoaderPool._ask,
        "_merge(answers) -> answers[-1]",
        near=49,
    ),
    Mutation(
        "a sample that is passed over is read on from there",
        SourceStream.stored,
        "or self._at != position ->",
        near=40,
    ),
    Mutation(
        "more is requested than may be",
        RankClient._request_steps,
        "<= self -> <= 9 + self",
        near=40,
    ),
    Mutation(
        "what a dead role has not answered is not asked again",
        RemoteReply._awaited,
        "self._pending = self._location.channel.send(self._messages)",
        near=3,
    ),
    Mutation(
        "a planner that is made again begins anew",
        StoredPlanner.__init__,
        "store.newest_state() is not None -> False",
    ),
    Mutation(
        "who has gone on is waited for", CommonState.took_step, "self._end_if_decided()", near=540
    ),
    Mutation(
        "a state before all have come",
        CommonState._end_if_decided,
        "come.issuperset(meeting.ranks) -> come",
        near=15,
    ),
    Mutation(
        "a rank that failed is waited for",
        CommonState.note_failure,
        "self._failed[rank] = error",
        near=53,
    ),
    Mutation(
        "a client that is announced twice is two",
        JobRegistry.register_client,
        "if mark not in self._numbers -> if True",
        near=1848,
    ),
    Mutation(
        "a rank goes further ahead than plans are kept",
        Pace.room.fget,
        "last + self._kept -> last + self._kept + 1",
        near=7,
    ),
    Mutation(
        "an actor that is being made again is taken for gone",
        RayLocator.locate,
        "time.sleep(_INTERVAL) -> raise RoleGoneError",
        near=2,
    ),
    Mutation(
        "a loader with standbys plays less than it is told",
        LoaderActor.play,
        " part,\n ->  LoaderPart(**{**vars(part), 'shares': part.shares[:1]}),\n",
        near=7,
    ),
)
