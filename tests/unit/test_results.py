"""The types of the JSON that a build writes have the keys of its schemas."""

from __future__ import annotations

from typing import Any

import pytest

from etbuild import json_schema, results
from etkit.building import lockfile

INDEX, LOCK, REPORT = (json_schema.validator(name).schema for name in ("index", "lock", "report"))
STEPS = json_schema.validator("step#lowering").schema["$defs"]
METHOD = REPORT["properties"]["methods"]["additionalProperties"]
KEY_INPUTS = INDEX["properties"]["inputs"]
SHARING = REPORT["properties"]["sharing"]
LOWERING = STEPS["lowering"]["properties"]


@pytest.mark.parametrize(
    ("of", "schema"),
    [
        (results.Index, INDEX),
        (results.KeyInputs, KEY_INPUTS),
        (results.Toolchain, KEY_INPUTS["properties"]["toolchain"]),
        (results.Release, INDEX["$defs"]["release"]),
        (results.ArtifactFacts, INDEX["properties"]["artifacts"]["items"]),
        (lockfile.Lockfile, LOCK),
        (lockfile.LockedArtifact, LOCK["properties"]["artifacts"]["additionalProperties"]),
        (results.Report, REPORT),
        (results.ReportedMethod, METHOD),
        (results.OperatorCounts, METHOD["properties"]["operators"]),
        (results.ReportedSizes, REPORT["properties"]["bytes"]),
        (results.ReportedTotals, REPORT["properties"]["bytes"]),
        (results.Total, REPORT["$defs"]["total"]),
        (results.Sharing, SHARING),
        (results.Duplicate, SHARING["properties"]["duplicates"]["items"]),
        (results.CheckResult, REPORT["properties"]["checks"]["items"]),
        (results.TensorValue, REPORT["$defs"]["value"]["anyOf"][0]),
        (results.OtherValue, REPORT["$defs"]["value"]["anyOf"][1]),
        (results.FilesAndPackages, STEPS["inputs"]),
        (results.LoweringFacts, STEPS["lowering"]),
        (results.RuntimeLimit, LOWERING["runtime_limits"]["items"]),
        (results.NonFiniteWeight, STEPS["nonFinite"]["additionalProperties"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_type_has_the_keys_of_its_schema(of: Any, schema: dict[str, Any]) -> None:
    kinds = {name: kind.__forward_arg__ for name, kind in of.__annotations__.items()}
    optional = {name for name, kind in kinds.items() if name in of.__optional_keys__ or kind.startswith("NotRequired[")}
    assert set(kinds) == set(schema["properties"])
    assert set(kinds) - optional == set(schema["required"])
