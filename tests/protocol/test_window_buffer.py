"""The buffer: windows hold all that has been in one, and a round resumes from its start."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evenstep.errors import InvariantError
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer


def sample(number):
    """Columns by which a sample is known again."""
    shows = number % 4 // 3 * 2
    return [number + 1, number % 7, number * 3, number % 3, number * 9, shows, number % 5]


def columns(numbers):
    return np.array([sample(number) for number in numbers], np.int64).reshape(-1, 7)


class BufferModel(RuleBasedStateMachine):
    """The buffer beside a list of [number, age], in which the first `seen` are in the window."""

    def __init__(self):
        super().__init__()
        self.buffer = WindowBuffer()
        self.held: list[list[int]] = []
        self.seen = self.next = self.taken = self.round = 0
        self.start = None

    @rule(gaps=st.lists(st.integers(0, 3), max_size=8), plain=st.booleans())
    def append(self, gaps, plain):
        numbers = []
        for gap in gaps:
            self.next += 0 if plain else gap
            numbers.append(self.next)
            self.next += 1
        given_ = None if plain else np.array(numbers, np.int64)
        assert self.buffer.append(columns(numbers), given_).tolist() == numbers
        self.held += [[number, 0] for number in numbers]

    @rule(size=st.integers(0, 12))
    def look(self, size):
        self.seen = max(self.seen, min(size, len(self.held)))
        if self.seen:
            self.taken = max(self.taken, self.held[self.seen - 1][0] + 1)
        self.start = start = self.buffer.look(size, round=self.round, step=3 * self.round)
        assert (start.round, start.step) == (self.round, 3 * self.round)
        assert start.numbers.tolist() == [number for number, _ in self.held[: self.seen]]
        assert start.ages.tolist() == [age for _, age in self.held[: self.seen]]
        assert start.columns.T.tolist() == columns(start.numbers).tolist()
        assert start.columns.shape == (7, self.seen)
        assert start.taken == self.taken

    @rule(data=st.data())
    def remove(self, data):
        if self.start is None:
            return
        places = st.integers(0, max(self.seen - 1, 0))
        out = data.draw(st.lists(places, unique=True, max_size=self.seen))
        before = [np.copy(a) for a in (self.start.numbers, self.start.columns, self.start.ages)]
        self.buffer.remove(np.array(out, np.int64))
        # A start outlives its round: a checkpoint may still be made of it.
        after = (self.start.numbers, self.start.columns, self.start.ages)
        assert all(np.array_equal(x, y) for x, y in zip(before, after))
        window = [one for place, one in enumerate(self.held[: self.seen]) if place not in out]
        for one in window:
            one[1] += 1
        self.held = window + self.held[self.seen :]
        self.seen, self.start = len(window), None
        self.round += 1

    @rule()
    def go_on_from_the_start(self):
        """What is not in the start is received again: from `taken` on, and nothing else."""
        if self.start is None:
            return
        again = [number for number, _ in self.held[self.seen :]]
        assert all(number >= self.start.taken for number in again)
        self.buffer = WindowBuffer(self.start)
        if again:
            self.buffer.append(columns(again), np.array(again, np.int64))
        else:
            self.next = self.start.taken
        self.start = None

    @invariant()
    def holds_what_the_list_holds(self):
        assert len(self.buffer) == len(self.held)
        assert self.buffer.seen == self.seen
        assert self.buffer.next_number == self.next


BufferModel.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
test_the_buffer_is_a_list_with_a_window_in_front = BufferModel.TestCase


@pytest.mark.parametrize("numbers", [[2, 2], [3, 2], [0], [1, 5]])
def test_numbers_that_do_not_follow_are_refused(numbers):
    empty = np.empty(0, np.int64)
    start = RoundStart(
        round=0, step=0, taken=2, numbers=empty, columns=np.empty((7, 0), np.int64), ages=empty
    )
    with pytest.raises(InvariantError, match=f"arrival numbers {numbers[0]} to {numbers[-1]} do"):
        WindowBuffer(start).append(columns(numbers), np.array(numbers))
