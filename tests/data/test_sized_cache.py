"""What a process keeps of its sources."""

from __future__ import annotations

from evenstep.data.row_groups import SizedCache


def test_what_was_not_used_for_longest_goes_first() -> None:
    cache: SizedCache[str] = SizedCache(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.size) == ("A", None, "C", 8)
    cache.put("a", "again", 2)
    assert (cache.get("a"), cache.size) == ("again", 6)
    cache.drop("c")
    cache.drop("c")
    assert (cache.get("c"), cache.size) == (None, 2)


def test_what_is_not_used_while_others_are_goes_also_if_there_is_room() -> None:
    cache: SizedCache[str] = SizedCache(10)
    for name in "abc":
        cache.put(name, name, 1)
    for _ in range(1000):
        assert cache.get("b") == "b"
        cache.put("c", "c", 1)
    assert (cache.get("a"), cache.size) == (None, 2)
