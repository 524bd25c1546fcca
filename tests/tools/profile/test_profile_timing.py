from __future__ import annotations

import pytest

from evenstep.tools.profile.timer import Timing, time_in_turn


class Clock:
    """Time passes only in functions."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def function(self, *seconds: float) -> FakeFunction:
        return FakeFunction(self, seconds)


class FakeFunction:
    def __init__(self, clock: Clock, seconds: tuple[float, ...]) -> None:
        self.clock, self.seconds, self.calls = clock, seconds, 0

    def __call__(self) -> None:
        self.clock.now += self.seconds[min(self.calls, len(self.seconds) - 1)]
        self.calls += 1


def test_timings_are_the_median_and_quartiles_of_the_repeats() -> None:
    assert Timing.of([5.0, 1.0, 2.0, 3.0, 4.0]) == Timing(seconds=3, low=2, high=4, repeats=5)
    assert Timing.of([5.0]) == Timing(seconds=5, low=5, high=5, repeats=1)


def test_the_warm_up_counts_for_nothing() -> None:
    clock = Clock()
    slow_first, steady = clock.function(100, 2), clock.function(3)
    first, second = time_in_turn(
        [slow_first, steady], synchronize=lambda: None, share=0, limit=1000, clock=clock
    )
    assert (first.seconds, first.high) == (2, 2)
    assert (second.seconds, second.repeats) == (3, 3)


@pytest.mark.parametrize(
    ("share", "limit", "repeats"), [(0, 1000, 3), (10, 1000, 9), (1e6, 1e6, 50), (10, 0, 1)]
)
def test_repeats_end_with_the_share_but_for_the_fewest_and_the_limit(
    share: float, limit: float, repeats: int
) -> None:
    clock = Clock()
    (timing,) = time_in_turn(
        [clock.function(1)], synchronize=lambda: None, share=share, limit=limit, clock=clock
    )
    assert timing.repeats == repeats


def test_what_a_call_launches_is_waited_for_within_its_time() -> None:
    clock = Clock()
    launched = 0

    def launch() -> None:
        nonlocal launched
        launched += 1

    def synchronize() -> None:
        nonlocal launched
        clock.now += 7 * launched
        launched = 0

    (timing,) = time_in_turn([launch], synchronize=synchronize, share=0, limit=1e9, clock=clock)
    assert timing.seconds == 7


def test_fast_functions_are_called_several_times_per_repeat() -> None:
    clock = Clock()
    fast = clock.function(0.001)
    (timing,) = time_in_turn([fast], synchronize=lambda: None, share=0, limit=1e9, clock=clock)
    assert timing.seconds == pytest.approx(0.001)
    assert fast.calls > 3 * timing.repeats
