"""Where the trainer is: it counts what was received, and survives JSON at any place."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch.loss_scale import LossTotals
from evenstep.batch.step_info import StepInfo
from evenstep.loader.batcher.progress import BadSample, RoundProgress, StepProgress
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.sample_order import OrderChecksum
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.epoch.remaining import UNSIZED, Remaining
from evenstep.plan.epoch.stream import Stream
from evenstep.protocol.receipts import StepTotals
from evenstep.protocol.window_buffer import RoundStart


def worker_states(counts: list[int]) -> WorkerStates:
    """Of workers that have yielded so many samples each; None is that of one at its beginning."""
    texts = [
        json.dumps({"count": count, "ended": False, "of": "dataset", "state": {"é": [1, None]}})
        for count in counts
    ]
    workers = tuple(text if count else None for text, count in zip(texts, counts))
    return WorkerStates(place=sum(counts), turn=len(counts) - 1, workers=workers)


def array(numbers: Any) -> np.ndarray:
    return np.array(list(numbers), np.int64)


def info(step: int, indices: tuple[Any, ...] | None, *, filler: bool = False) -> StepInfo:
    one = np.ones(1, np.int64)
    totals = StepTotals(one, one, one, one, *[one * 1.0] * 4)
    return StepInfo(
        epoch=2,
        step=step,
        rank=0,
        world_size=1,
        filler=filler,
        indices=indices,
        totals=totals,
        loss_scale=1.0,
    )


@st.composite
def streams(draw: st.DrawFn, total: int = UNSIZED) -> Stream:
    leftover = sorted(draw(st.sets(st.integers(0, 30))))
    tail = draw(st.integers(leftover[-1] + 1 if leftover else 0, 40))
    return Stream(total, tail, array(leftover))


FIXED, DEALT, EITHER = st.just(False), st.just(True), st.booleans()


@st.composite
def positions(draw: st.DrawFn, dealt: st.SearchStrategy[bool] = FIXED) -> EpochProgress:
    """Anywhere in a round, in its first or a later window, with any past."""
    window = sorted(draw(st.sets(st.integers(0, 40), max_size=12)))
    taken = draw(st.integers(window[-1] + 1 if window else 0, 50))
    count = len(window)
    whole = st.integers(0, 2**31 - 1)

    def of_each(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=count, max_size=count))

    trained = draw(st.permutations(window))[: draw(st.integers(0, count))]
    deals = draw(dealt)
    stream = draw(streams(1000) if deals else st.one_of(st.none(), streams(1000)))
    entries: list[int] = []
    if deals:
        share = Stream(UNSIZED)
        few = st.sets(st.integers(0, 99), min_size=count, max_size=count + 9)
        entries = sorted(draw(few))
        places = [entries[window.index(number)] for number in trained]
    else:
        share = draw(st.one_of(st.just(Stream(UNSIZED)), streams()))
        places = share.positions(array(trained)).tolist()
    names = draw(st.sampled_from([int, str, lambda place: (place, "x"), np.int64]))
    skipped = st.builds(BadSample, st.just(2), st.integers() | st.text(), st.text())
    return EpochProgress(
        epoch=2,
        stream=stream,
        dealt=deals,
        share=share,
        start=RoundStart(
            round=draw(st.integers(0, 9)),
            step=draw(st.integers(0, 99)),
            taken=taken,
            quota=draw(st.none() | st.integers(0, 99)),
            numbers=array(window),
            columns=np.array([of_each(whole) for _ in range(5)], np.int64),
            ages=array(of_each(st.integers(0, 9))),
            seen_lengths=(draw(whole), draw(st.integers(0, 2**62))),
            window_size=draw(st.none() | st.integers(1, 99)),
            window_limit=draw(st.none() | st.integers(1, 99)),
            entries=array(entries),
            next_entry=draw(st.integers(100, 200)) if deals else 0,
        ),
        received=draw(st.integers(0, 9)),
        update=LossTotals(*(draw(st.integers(0, 99)) for _ in "st"), draw(st.floats(0, 99))),
        trained=array(trained),
        checksum=OrderChecksum.of(places, map(names, places)),
        worker_states=draw(
            st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=4).map(worker_states)
        ),
        skipped=tuple(draw(st.lists(skipped, max_size=3))),
        samples=draw(st.integers(0, 9999)),
    )


@given(positions())
def test_a_state_of_text_holds_no_images_and_one_without_them_is_read(
    position: EpochProgress,
) -> None:
    position.start.columns[3:] = 0
    state = position.to_dict()
    assert not {"images", "patch_pairs"} & set(state)
    assert (through_json(position).start.columns == position.start.columns).all()
    position.start.columns[3:] = 7
    assert position.to_dict().get("images", []) == [7] * len(position.start.numbers)


def through_json(position: EpochProgress) -> EpochProgress:
    return EpochProgress.from_dict(
        json.loads(json.dumps(position.to_dict())),
        epoch=position.epoch,
        round=position.start.round,
        step=position.start.step,
        received=position.received,
        window_size=position.start.window_size,
        window_limit=position.start.window_limit,
        next_entry=position.start.next_entry if position.dealt else None,
        update=position.update,
        samples=position.samples,
        stream=position.stream,
        checksum_before_reshard=position.checksum_before_reshard,
    )


def plain(value: Any) -> Any:
    """All of a position, to be compared."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if isinstance(value, (EpochProgress, RoundStart, Stream, Remaining)):
        return {name: plain(item) for name, item in vars(value).items()}
    return value


@given(positions(EITHER))
def test_json_and_back_is_the_same_position(position: EpochProgress) -> None:
    again = through_json(position)
    assert plain(again) == plain(position)
    assert plain(again.arrival_progress.unfinished) == plain(position.arrival_progress.unfinished)
    assert plain(again.remaining) == plain(position.remaining)


@given(positions())
def test_what_remains_is_what_was_not_trained_on(position: EpochProgress) -> None:
    remaining, trained = position.remaining, set(position.trained.tolist())
    window = position.start.numbers.tolist()
    taken = position.start.taken
    expected = [n for n in window if n not in trained] + list(range(taken, taken + 60))
    shown = [*remaining.numbers.tolist(), *range(remaining.number, taken + 60)]
    assert shown == expected
    assert [remaining.place_of(n) for n in expected] == (
        position.share.positions(array(expected)).tolist()
    )


@given(positions())
def test_new_windows_begin_with_what_remains_and_with_it_only(position: EpochProgress) -> None:
    fresh = position.with_new_windows()
    before, after = position.remaining, fresh.remaining
    horizon = max(before.place, after.place) + 5
    assert [*after.places.tolist(), *range(after.place, horizon)] == [
        *before.places.tolist(),
        *range(before.place, horizon),
    ]
    assert len(fresh.start.numbers) == fresh.start.taken == fresh.received == 0
    assert (fresh.step, fresh.epoch) == (position.step, position.epoch)
    assert fresh.start.round == position.start.round + (1 if position.received else 0)
    # Ranks that resume by places agree with it.
    assert fresh.place_progress.taken == position.place_progress.taken
    assert plain(fresh.place_progress.unfinished) == plain(position.place_progress.unfinished)
    assert plain(through_json(fresh)) == plain(fresh)


@given(positions(DEALT))
def test_of_dealt_samples_remain_those_not_trained_on_and_those_queued(
    position: EpochProgress,
) -> None:
    start, trained = position.start, set(position.trained.tolist())
    remaining = position.remaining
    numbers = [*start.numbers.tolist(), *range(start.taken, start.taken + start.queued)]
    expected = [
        (number, entry)
        for number, entry in zip(numbers, start.entries.tolist(), strict=True)
        if number not in trained
    ]
    assert list(zip(remaining.numbers.tolist(), remaining.places.tolist())) == expected
    assert remaining.number == start.taken + start.queued
    # In new windows the same samples come first, in the same order, and the deals go on.
    fresh = position.with_new_windows()
    assert plain(fresh.remaining.places) == plain(remaining.places)
    assert fresh.remaining.numbers.tolist() == list(range(len(expected)))
    assert (fresh.start.next_entry, fresh.start.quota) == (start.next_entry, None)
    assert plain(through_json(fresh)) == plain(fresh)


def round_of(number: int, step: int, window: range, *, bad: int = 0) -> RoundProgress:
    count = len(window)
    start = RoundStart(
        round=number,
        step=step,
        taken=window.stop,
        numbers=array(window),
        columns=np.ones((5, count), np.int64),
        ages=np.zeros(count, np.int64),
    )
    skipped = tuple(BadSample(2, n, "torn") for n in range(bad))
    return RoundProgress(start, array([]), None, skipped)


def test_a_position_moves_with_every_step_that_is_received() -> None:
    position = EpochProgress(epoch=2, stream=Stream(20))
    assert position.untouched
    assert position.step == 0
    steps = [
        (info(0, (50, 52)), StepProgress(array([0, 2]), round_of(0, 0, range(6), bad=2))),
        (info(1, (55,)), StepProgress(array([5]))),
        (info(2, (), filler=True), StepProgress(array([]))),
        (info(3, (51,)), StepProgress(array([1]), round_of(1, 3, range(6, 8), bad=1))),
    ]
    seen = []
    for step, message in steps:
        position = position.after(step, message, iterable=False)
        assert not position.untouched
        progress = position.arrival_progress
        seen.append((position.step, position.received, progress.unfinished.tolist()))
    assert seen == [(1, 1, [1, 3, 4, 5]), (2, 2, [1, 3, 4]), (3, 3, [1, 3, 4]), (4, 1, [6, 7])]
    assert [bad.index for bad in position.skipped] == [0, 1, 0]
    assert position.checksum == OrderChecksum.of([1], [51])
    assert not position.stateless


def test_a_step_without_samples_of_its_own_keeps_the_checksum() -> None:
    position = EpochProgress(epoch=2, stream=Stream(20))
    message = StepProgress(array([0]), round_of(0, 0, range(3)))
    position = position.after(info(0, (7,)), message, iterable=False)
    position = position.after(info(1, (), filler=True), StepProgress(array([])), iterable=False)
    assert position.checksum == OrderChecksum.of([0], [7])


def test_an_iterable_dataset_that_gives_no_states_cannot_be_resumed() -> None:
    position = EpochProgress(epoch=2, stream=None)
    assert not position.stateless
    message = StepProgress(array([0]), round_of(0, 0, range(3)))
    position = position.after(info(0, None), message, iterable=True)
    assert position.stateless
    assert position.with_new_windows().stateless


def test_an_epoch_dealt_out_to_other_ranks_before_is_not_untouched() -> None:
    assert not EpochProgress(epoch=0, stream=Stream(20, 5)).untouched
    assert not EpochProgress(epoch=0, stream=None, start=RoundStart.empty(1, 4)).untouched
    assert EpochProgress(epoch=7, stream=None).untouched
