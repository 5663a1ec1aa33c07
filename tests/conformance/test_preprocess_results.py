"""The error names a backend that does not return one result for each partition."""

from __future__ import annotations

import pytest

from .conftest import Lower, take
from .three_methods import MODEL, methods


def tail(damage: str) -> str:
    """Method `a` has two partitions, `b` has one."""
    taker = take("sin, cos", "DamagedBackend", f'"{damage}:"')
    return methods(a=f"[{taker}]", b=f"[{taker}]")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("nothing", "methods: DamagedBackend returned None, not a dict of results"),
        ("a list", "methods: DamagedBackend returned `list`, not a dict of results"),
        ("no list", "methods.a.partitioners: DamagedBackend returned None for the method, not a list of results"),
        ("fewer", "methods.a.partitioners: DamagedBackend returned 1 result for 2 partitions"),
        ("more", "methods.a.partitioners: DamagedBackend returned 3 results for 2 partitions"),
        ("a method less", "methods.a.partitioners: DamagedBackend returned None for the method"),
        ("a method more", "methods: DamagedBackend returned results for `elsewhere`, which it was not given"),
        (
            "no result",
            "methods.a.partitioners: DamagedBackend returned None for partition 0, not a `PreprocessResult`",
        ),
        (
            "text",
            "methods.a.partitioners: DamagedBackend returned `str` as the compiled partition 0, not bytes",
        ),
        ("a store", "DamagedBackend returned `NamedDataStore` as the named data of partition 0"),
        ("no blob", "DamagedBackend returned named data for partition 0 that has keys without a blob"),
        ("a blob of text", "DamagedBackend returned named data for partition 0 that has `str` instead of `bytes`"),
    ],
)
def test_a_damaged_result_names_the_backend(lower: Lower, damage: str, message: str) -> None:
    outcome, _ = lower(tail(damage), MODEL)
    assert message in outcome.err
    assert "model.yaml:4" in outcome.err or "model.yaml:5" in outcome.err
    assert (outcome.code, outcome.files) == (1, [])


def test_sound_results_pass(lower: Lower) -> None:
    assert lower(tail("good"), MODEL)[0].code == 0
