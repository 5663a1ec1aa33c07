"""Partitioners of different methods get the same index where the orders allow it. Contradictions are reported."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etbuild import backends
from etbuild.backends import call_slots
from etbuild.backends.call_slots import Item, Slot
from etbuild.errors import InputError
from etplugins.recipes import names as recipes
from tests.helpers.examples_drawn import examples
from tests.helpers.fewest_calls import fewest

Entry = dict[str, Any]


def entry(backend: str, **options: object) -> Entry:
    return {"backend": backend, "options": options}


def align(lists: dict[str, list[Entry]]) -> list[dict[str, Entry]]:
    """Returns the slots as entries."""
    items = {
        method: [
            call_slots.item(each["backend"], each["options"], ("methods", method, "partitioners", index))
            for index, each in enumerate(listed)
        ]
        for method, listed in lists.items()
    }
    return [
        {method: lists[method][int(str(each.path[-1]))] for method, each in slot.items()}
        for slot in call_slots.align(items)
    ]


# Core ML and Vulkan may look at several methods; OpenVINO and XNNPACK do not.
C, V, O, X = entry("coreml"), entry("vulkan"), entry("openvino"), entry("xnnpack")  # noqa: E741


def test_a_shorter_list_waits_for_the_others() -> None:
    assert align({"prefill": [V, X], "decode": [X]}) == [{"prefill": V}, {"prefill": X, "decode": X}]


def test_equal_lists_stay_as_they_are() -> None:
    assert align({"f": [V, X], "g": [V, X]}) == [{"f": V, "g": V}, {"f": X, "g": X}]


def test_options_may_differ_within_one_backend() -> None:
    fast, slow = entry("xnnpack", mode="fast"), entry("xnnpack", mode="slow")
    assert align({"f": [fast], "g": [slow]}) == [{"f": fast, "g": slow}]


@pytest.mark.parametrize("backend", ["xnnpack", "vulkan"])
def test_two_partitioners_of_one_backend_in_one_method_keep_their_order(backend: str) -> None:
    first, second = entry(backend, mode=1), entry(backend, mode=2)
    assert align({"f": [first, second], "g": [second]}) == [{"f": first}, {"f": second, "g": second}]
    assert align({"f": [first, second], "g": [second, first]}) == [{"f": first, "g": second}, {"f": second, "g": first}]


def test_a_partitioner_does_not_overtake_another_of_its_method() -> None:
    late = entry("vulkan", late=True)
    assert align({"f": [V], "g": [C, late]}) == [{"g": C}, {"f": V, "g": late}]


def test_a_partitioner_joins_the_call_that_its_order_allows() -> None:
    """Always choosing the first partitioner would call Vulkan three times."""
    early, late, own = entry("vulkan", early=True), entry("vulkan", late=True), entry("vulkan", own=True)
    assert align({"f": [early, C, late], "g": [C, own]}) == [{"f": early}, {"f": C, "g": C}, {"f": late, "g": own}]
    lists = {"f": [early, X, late], "g": [C, own, X]}
    assert align(lists) == [{"g": C}, {"f": early, "g": own}, {"f": X, "g": X}, {"f": late}]


def test_a_method_without_partitioners_takes_no_part() -> None:
    assert align({"f": [X], "g": []}) == [{"f": X}]


def test_nothing_to_align() -> None:
    assert align({"f": [], "g": []}) == []
    assert align({}) == []


def test_custom_partitioners_are_one_backend_where_one_factory_makes_them() -> None:
    one, two = entry("custom", factory="p:one"), entry("custom", factory="p:two")
    assert align({"f": [one], "g": [two]}) == [{"f": one}, {"g": two}]
    wide, narrow = entry("custom", factory="p:one", kwargs={"n": 8}), entry("custom", factory="p:one", kwargs={"n": 1})
    assert align({"f": [wide], "g": [narrow]}) == [{"f": wide, "g": narrow}]
    assert align({"f": [wide, narrow], "g": [narrow]}) == [{"f": wide}, {"f": narrow, "g": narrow}]


def test_partitioners_of_coreml_meet_where_their_methods_can_be_one_model() -> None:
    new, old = (entry("coreml", minimum_deployment_target=target) for target in ("iOS18", "iOS17"))
    precise = entry("coreml", minimum_deployment_target="iOS18", compute_precision="float32")
    unpaired = entry("coreml", minimum_deployment_target="iOS18", multimethod_weight_sharing_strategy="disabled")
    written = entry("coreml", minimum_deployment_target="iOS18", compute_precision="float16", compute_unit="cpu_only")
    lists = {"e": [new], "f": [old], "g": [precise], "h": [unpaired], "i": [written]}
    assert align(lists) == [{"e": new, "i": written}, {"f": old}, {"g": precise}, {"h": unpaired}]


def test_of_opposite_orders_the_backend_that_knows_one_method_is_called_twice() -> None:
    assert align({"f": [C, X], "g": [X, C]}) == [{"g": X}, {"f": C, "g": C}, {"f": X}]
    assert len(align({"f": [O, X], "g": [X, O]})) == 3


def test_opposite_orders_of_backends_that_look_at_all_methods_name_the_methods() -> None:
    with pytest.raises(InputError, match=r"\(`f`: coreml, vulkan; `h`: vulkan, coreml\)\n.*use one order") as error:
        align({"f": [C, X, V], "g": [X, C], "h": [V, C]})
    assert error.value.problems[0].path == ("methods", "h", "partitioners", 0)
    with pytest.raises(InputError, match=r"\(`f`: coreml, vulkan; `g`: vulkan, coreml\)"):
        align({"f": [C, entry("vulkan", early=True)], "g": [V, C]})


def test_orders_that_contradict_each_other_in_a_circle_are_listed() -> None:
    web = entry("webgpu")
    with pytest.raises(InputError, match=r"\(`f`: coreml, vulkan; `g`: vulkan, webgpu; `h`: webgpu, coreml\)"):
        align({"f": [C, V], "g": [V, web], "h": [web, C], "i": [X]})


def test_a_recipe_that_is_named_has_no_conflict_with_the_manifest() -> None:
    """The content of a recipe is unknown until it is created. In each known recipe, at most one backend looks at
    several methods. So no order in a manifest can conflict with it, and `validate` need not check this."""
    for name, used in recipes.NAMES.items():
        assert sum(not backends.get(backend).separable for backend in used) <= 1, name


def test_every_choice_of_lists_keeps_orders_and_meets_once() -> None:
    """For all lists over three partitioners in one global order: each method keeps its order, and equal ones share a
    slot."""
    lists = [list(c) for n in range(4) for c in itertools.combinations([C, V, X], n)]
    for f, g, h in itertools.product(lists, repeat=3):
        slots = align({"f": f, "g": g, "h": h})
        for name, entries in (("f", f), ("g", g), ("h", h)):
            assert [slot[name] for slot in slots if name in slot] == entries
        for partitioner in (C, V, X):
            assert sum(partitioner in slot.values() for slot in slots) <= 1


def test_the_order_of_methods_does_not_matter() -> None:
    lists = {"f": [V], "g": [C, X], "h": [X]}
    assert align(lists) == align(dict(reversed(lists.items())))


def test_many_methods_with_lists_of_their_own_are_aligned_and_refused() -> None:
    """Lists that agree on one order are aligned without a search."""
    known = [C, V, X, O, entry("webgpu"), entry("mlx"), entry("cuda"), entry("nxp")]
    rows = [list(c) for n in range(1, 9) for c in itertools.combinations(known, n)]
    lists = {f"m{number:03}": row for number, row in enumerate(rows)}
    assert len(lists) == 255
    assert len(align(lists)) == len(known)
    with pytest.raises(InputError, match="contradict each other"):
        align({**lists, "z": [V, C]})


def drawn(kinds: str, single: bool) -> st.SearchStrategy[dict[str, list[Item]]]:
    """Draws lists of up to three methods. Upper case means a backend that looks at all methods of a call."""

    def items(method: str, drawn: list[tuple[str, int]]) -> list[Item]:
        return [
            Item(kind, (method, index), kind, f"{kind}{options}", kind if kind.isupper() else None)
            for index, (kind, options) in enumerate(drawn)
        ]

    one = st.tuples(st.sampled_from(kinds), st.integers(0, 1))
    listed = st.lists(one, max_size=4, unique_by=(lambda pair: pair[0]) if single else (lambda pair: pair))
    return st.lists(listed, min_size=1, max_size=3).map(
        lambda methods: {name: items(name, each) for name, each in zip("fgh", methods, strict=False)}
    )


def aligned(lists: dict[str, list[Item]]) -> list[Slot] | None:
    try:
        return call_slots.align(lists)
    except InputError:
        return None


@examples(200)
@given(drawn("ABx", single=False))
def test_no_choice_has_fewer_calls(lists: dict[str, list[Item]]) -> None:
    slots = aligned(lists)
    rows = tuple(tuple((each.kind, each.identity) for each in items) for items in lists.values())
    assert (None if slots is None else len(slots)) == fewest(rows)
    for method, items in lists.items() if slots is not None else ():
        assert slots is not None
        assert [slot[method] for slot in slots if method in slot] == items
    for slot in slots or ():
        assert len({each.kind for each in slot.values()}) == 1


@examples(200)
@given(drawn("ABxy", single=True))
def test_a_backend_is_called_once_unless_the_orders_contradict_each_other(lists: dict[str, list[Item]]) -> None:
    orders = {tuple(pair) for items in lists.values() for pair in itertools.combinations([e.kind for e in items], 2)}
    reach = {(a, b) for a, b in orders}
    for b, a, c in itertools.product("ABxy", repeat=3):
        reach |= {(a, c)} if {(a, b), (b, c)} <= reach else set()
    loops = {kind for kind in "ABxy" if (kind, kind) in reach}
    slots = aligned(lists)
    calls = Counter(kind for slot in slots or () for kind in {each.kind for each in slot.values()})
    if slots is None:
        assert loops & {"A", "B"}
    for kind, count in calls.items():
        assert count == 1 or (kind in loops and kind.islower())
