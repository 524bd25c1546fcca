from __future__ import annotations

from evenstep.service.registry.metrics import TakenStep, WaitStatistics


def test_waits_are_those_of_the_slowest_rank() -> None:
    waits = WaitStatistics()
    figures = {"imbalance": 1.1, "imbalance_before": 1.5, "tokens": 10}
    for step, seconds in enumerate([(3.0, 1.0), (0.1, 0.4)]):
        for rank in (0, 1):
            stages = {"plan": rank + 1.0, "build": 2.0}
            waits.record_step(rank, TakenStep(step, seconds[rank], stages, **figures))
    summary = waits.summary()
    assert summary["exposed_seconds"] == {"first": 3.0, "last": 0.4, "mean": 0.4, "p95": 0.4}
    assert summary["stage_seconds"] == {"build": 2.0, "plan": 1.5}
    assert summary["tokens"] == 40
    assert not waits.all_ended
    waits.record_end(0)
    waits.record_end(1)
    assert waits.all_ended


def test_only_the_last_steps_are_kept() -> None:
    waits = WaitStatistics(kept=3)
    for step in range(10):
        waits.record_step(0, TakenStep(step, 0.5, {}, 1.0, 1.0, 1))
    assert waits.summary()["first_step"] == 7
    assert waits.clients() == [{"rank": 0, "step": 10, "wait_seconds": 5.0, "ended": False}]
