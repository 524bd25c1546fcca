"""`Orders`: what somebody elsewhere wants of the process that started the job, which alone starts
and ends roles. Callers leave an order at the registry; that process asks for the next one.

Messages may arrive twice, and at another registry: an order has a mark, by which its answer is
found again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.remote.channels import Answer

_ASKED_WITHIN = 30.0  # seconds
_KEPT = 100


@dataclass(frozen=True)
class Order:
    mark: str
    """Different for each order."""
    method: str
    """Of `ChangingJob`."""
    arguments: Mapping[str, Any]
    by: str
    """Whose order it is."""


class Orders:
    """Of one registry; for its event loop."""

    def __init__(self) -> None:
        self._open: dict[str, Order] = {}
        """By mark, those that have no answer."""
        self._asked: set[str] = set()
        """Marks of those that were handed out."""
        self._answers: dict[str, asyncio.Future[Answer]] = {}
        """By mark."""
        self._changed = asyncio.Event()

    async def carried_out(self, order: Order) -> Any:
        """Waits until an order is carried out, and returns or raises what came of it.

        Raises:
            EvenstepError: nobody has asked for it.
        """
        known = order.mark in self._answers
        answer = self._answer_to(order.mark)
        if not known:
            self._open[order.mark] = order
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
            await asyncio.wait([answer], timeout=_ASKED_WITHIN)
            if order.mark not in self._asked and not answer.done():
                del self._open[order.mark], self._answers[order.mark]
                raise EvenstepError(
                    f"the process that started the job has not answered for {_ASKED_WITHIN:.0f} s: "
                    "it is stopped, hangs, or is busy with another order; nothing was changed"
                )
        found = await asyncio.shield(answer)
        if found.error is not None:
            raise found.error
        return found.value

    async def next(self, mark: str, answer: Answer | None) -> Order:
        """Waits for the next order, which comes again until its answer does: a caller whose
        connection was lost asks twice, and only one of the two gets what is returned.

        Args:
            mark, answer: of the order that was carried out last.
        """
        if answer is not None:
            self._open.pop(mark, None)
            self._asked.discard(mark)
            if not self._answer_to(mark).done():
                self._answer_to(mark).set_result(answer)
        while not self._open:
            await self._changed.wait()
        order = next(iter(self._open.values()))
        self._asked.add(order.mark)
        return order

    def _answer_to(self, mark: str) -> asyncio.Future[Answer]:
        if mark not in self._answers:
            for old in [each for each, answer in self._answers.items() if answer.done()][:-_KEPT]:
                del self._answers[old]
            self._answers[mark] = asyncio.get_running_loop().create_future()
        return self._answers[mark]
