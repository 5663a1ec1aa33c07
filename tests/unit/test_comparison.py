"""The plug-in that compares programs is in no key but that of its step. It may use all of a processor where it makes no
text of what it computes."""

from __future__ import annotations

import ctypes
import os

import pytest

from etbuild.manifest.sections import Manifest, Method
from etbuild.plan.plan import from_manifest
from etbuild.processes import forked
from etbuild.surroundings import arithmetic
from etplugins.comparison.witness import allow_fast_products


def test_its_code_is_in_the_key_of_its_step_and_in_no_other() -> None:
    """What makes the bytes of a program does not depend on what compares it."""
    method: Method = {"example_inputs": [{"shape": [1, 8]}], "partitioners": [{"backend": "xnnpack", "options": {}}]}
    manifest: Manifest = {"name": "net", "model": {"factory": "model:create"}, "methods": {"forward": method}}
    plan, steps = from_manifest(manifest), ("plan", "export", "lower", "compare", "report")
    assert [step for step in steps if "etplugins.comparison" in plan.plugins_of(step)] == ["compare"]


@pytest.mark.parametrize("has_losses", [False, True])
def test_products_are_fast_unless_errors_become_a_text(has_losses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL reads its variable at the first product of a process. Python keeps it, as processes are known by it."""
    monkeypatch.setenv("MKL_CBWR", arithmetic.VARIABLES["MKL_CBWR"])
    seen = ctypes.CDLL(None).getenv
    seen.restype = ctypes.c_char_p

    def variables() -> tuple[bool, str]:
        allow_fast_products(has_losses=has_losses)
        return seen(b"MKL_CBWR") is not None, os.environ["MKL_CBWR"]

    assert forked.run({"variables": variables}, 1)["variables"] == (has_losses, "COMPATIBLE")
