"""Slots for one row or two: guided streams always find neighbours while two slots are free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rt_drama3.engine.slots import Plan, first_slots, plan_pair, plan_single


def test_the_lowest_free_slot_serves_one_row() -> None:
    assert plan_single([None, None]) == Plan(0)
    assert plan_single(["a", None, "b", None]) == Plan(1)
    assert plan_single(["a"]) is None
    assert plan_single([]) is None


def test_a_pair_begins_at_an_even_slot() -> None:
    assert plan_pair([None, None]) == Plan(0)
    assert plan_pair(["a", None, None, None]) == Plan(2)
    assert plan_pair(["a", "b", "c", None, None, None]) == Plan(4)


def test_a_stream_of_one_row_makes_way() -> None:
    assert plan_pair(["a", None, None, "b"]) == Plan(0, (0, 2))
    assert plan_pair(["a", None, "g", "g", None, "b"]) == Plan(0, (0, 4))
    assert plan_pair([None, "a", None]) == Plan(0, (1, 2))
    assert plan_pair(["g", "g", None, "a", None]) == Plan(2, (3, 4))


def test_less_than_two_free_slots_are_not_a_pair() -> None:
    assert plan_pair([]) is plan_pair([None]) is plan_pair(["a", None, "b"]) is None


def test_a_holder_of_two_slots_counts_once() -> None:
    one, two, three = object(), object(), object()
    assert first_slots([one, two, two, None, three]) == [one, two, three]


@given(count=st.integers(1, 12), orders=st.lists(st.tuples(st.booleans(), st.integers(0, 11))))
def test_pairs_are_whole_and_found_whatever_came_and_went(
    count: int, orders: list[tuple[bool, int]]
) -> None:
    slots: list[object | None] = [None] * count
    alive: list[list[bool]] = []  # a stream is a list of its own: guided or not
    for guided, number in orders:
        free = slots.count(None)
        plan = plan_pair(slots) if guided else plan_single(slots)
        if plan is None:
            assert free < 1 + guided
            if alive:  # a stream leaves
                leaving = alive.pop(number % len(alive))
                slots = [None if holder is leaving else holder for holder in slots]
            continue
        if plan.move is not None:
            source, target = plan.move
            assert slots[target] is None
            assert slots[source] is not None
            assert slots[source] == [False]
            slots[source], slots[target] = None, slots[source]
        new = [guided]
        alive.append(new)
        for slot in range(plan.slot, plan.slot + 1 + guided):
            assert slots[slot] is None
            slots[slot] = new
        assert not guided or plan.slot % 2 == 0
        assert first_slots(slots) == sorted(
            alive, key=lambda stream: next(n for n, holder in enumerate(slots) if holder is stream)
        )
        for holder in alive:
            held = [n for n, other in enumerate(slots) if other is holder]
            assert held == list(range(held[0], held[0] + 1 + holder[0]))
