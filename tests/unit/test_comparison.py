"""The plug-in that compares programs is in no key but that of its step."""

from __future__ import annotations

from etbuild.manifest.sections import Manifest, Method
from etbuild.plan.plan import from_manifest


def test_its_code_is_in_the_key_of_its_step_and_in_no_other() -> None:
    """What makes the bytes of a program does not depend on what compares it."""
    method: Method = {"example_inputs": [{"shape": [1, 8]}], "partitioners": [{"backend": "xnnpack", "options": {}}]}
    manifest: Manifest = {"name": "net", "model": {"factory": "model:create"}, "methods": {"forward": method}}
    plan, steps = from_manifest(manifest), ("plan", "export", "lower", "compare", "report")
    assert [step for step in steps if "etplugins.comparison" in plan.plugins_of(step)] == ["compare"]
