"""Equal partitioners of different methods meet at one index; contradictions are named."""

from __future__ import annotations

import itertools

import pytest

from etbuild.alignment import Entry, align
from etbuild.errors import InputError


def entry(backend: str, **options: object) -> Entry:
    return {"backend": backend, "options": options}


A, B, X = entry("openvino"), entry("vulkan"), entry("xnnpack")


def test_a_shorter_list_waits_for_the_others() -> None:
    assert align({"prefill": [A, X], "decode": [X]}) == [{"prefill": A}, {"prefill": X, "decode": X}]


def test_equal_lists_stay_as_they_are() -> None:
    assert align({"f": [A, X], "g": [A, X]}) == [{"f": A, "g": A}, {"f": X, "g": X}]


def test_options_may_differ_within_one_backend() -> None:
    fast, slow = entry("xnnpack", mode="fast"), entry("xnnpack", mode="slow")
    assert align({"f": [fast], "g": [slow]}) == [{"f": fast, "g": slow}]


def test_two_partitioners_of_one_backend_in_one_method_keep_their_order() -> None:
    first, second = entry("xnnpack", mode=1), entry("xnnpack", mode=2)
    assert align({"f": [first, second], "g": [second]}) == [{"f": first}, {"f": second, "g": second}]


def test_a_partitioner_does_not_overtake_another_of_its_method() -> None:
    late = entry("openvino", late=True)
    slots = align({"f": [A], "g": [B, late]})
    assert [slot.get("g") for slot in slots if "g" in slot] == [B, late]


def test_a_method_without_partitioners_takes_no_part() -> None:
    assert align({"f": [X], "g": []}) == [{"f": X}]


def test_nothing_to_align() -> None:
    assert align({"f": [], "g": []}) == []


def test_custom_partitioners_are_one_backend_where_one_factory_makes_them() -> None:
    one, two = entry("custom", factory="p:one"), entry("custom", factory="p:two")
    assert align({"f": [one], "g": [two]}) == [{"f": one}, {"g": two}]
    wide, narrow = entry("custom", factory="p:one", kwargs={"n": 8}), entry("custom", factory="p:one", kwargs={"n": 1})
    assert align({"f": [wide], "g": [narrow]}) == [{"f": wide, "g": narrow}]


def test_partitioners_of_coreml_meet_where_their_methods_can_be_one_model() -> None:
    new, old = (entry("coreml", minimum_deployment_target=target) for target in ("iOS18", "iOS17"))
    precise = entry("coreml", minimum_deployment_target="iOS18", compute_precision="float32")
    alone = entry("coreml", minimum_deployment_target="iOS18", multimethod_weight_sharing_strategy="disabled")
    written = entry("coreml", minimum_deployment_target="iOS18", compute_precision="float16", compute_unit="cpu_only")
    lists = {"e": [new], "f": [old], "g": [precise], "h": [alone], "i": [written]}
    assert align(lists) == [{"e": new, "i": written}, {"f": old}, {"g": precise}, {"h": alone}]


def test_opposite_orders_name_the_methods() -> None:
    with pytest.raises(InputError, match=r"`f`: openvino, xnnpack; `g`: xnnpack, openvino"):
        align({"f": [A, X], "g": [X, A]})


def test_every_choice_of_lists_keeps_orders_and_meets_once() -> None:
    """All lists over three partitioners, in one global order: each method's order holds, equal ones share one slot."""
    lists = [list(c) for n in range(4) for c in itertools.combinations([A, B, X], n)]
    for f, g, h in itertools.product(lists, repeat=3):
        slots = align({"f": f, "g": g, "h": h})
        for name, entries in (("f", f), ("g", g), ("h", h)):
            assert [slot[name] for slot in slots if name in slot] == entries
        for partitioner in (A, B, X):
            assert sum(partitioner in slot.values() for slot in slots) <= 1


def test_the_order_of_methods_does_not_matter() -> None:
    lists = {"f": [B], "g": [A, X], "h": [X]}
    assert align(lists) == align(dict(reversed(lists.items())))
