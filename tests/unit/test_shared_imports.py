"""transformers is imported before processes fork only if each source imports it before it does anything else."""

from __future__ import annotations

import pytest

from etbuild.inputs.sources import UsedSources
from etbuild.manifest.sections import Manifest
from etbuild.plan.plan import from_manifest
from etbuild.plan.step_plans import ExportPlan
from etkit.local.shared_imports import begins_with_transformers

FIRST = b'"""A model."""\nimport torch\nfrom transformers import AutoModel\nimport os\nos.environ["USE_TF"] = "0"\n'
LATER = b'import os\nos.environ["USE_TF"] = "0"\nfrom transformers import AutoModel\n'
SOURCES = {
    "first": ([FIRST], {"torch", "transformers"}, True),
    "from a module of it": ([b"from transformers.cache_utils import Cache\nx = 1\n"], {"transformers"}, True),
    "only imports elsewhere": ([FIRST, b"from .model import create\n"], {"torch", "transformers"}, True),
    "a package without code": ([FIRST, b'"""All models."""\n'], {"torch", "transformers"}, True),
    "no sources": ([], {"transformers"}, True),
    "not at all": ([b"import torch\n"], {"torch"}, False),
    "after other code": ([LATER], {"transformers"}, False),
    "below a condition": ([b"if True:\n    import transformers\n"], {"transformers"}, False),
    "a function of its own before": ([b"def f(): ...\nimport transformers\n"], {"transformers"}, False),
    "another source has code": ([FIRST, b"import torch\ntorch.compile = None\n"], {"torch", "transformers"}, False),
    "another package": ([FIRST], {"torch", "transformers", "unsloth"}, False),
    "a source of that name": ([b"from .transformers import Net\nx = 1\n"], {"transformers"}, False),
}


def plan(**more: object) -> ExportPlan:
    manifest = {"name": "net", "model": {"factory": "model:create"}, "methods": {"forward": {}}, **more}
    return from_manifest(Manifest(**manifest)).export_plan  # type: ignore[typeddict-item]


@pytest.mark.parametrize("case", SOURCES)
def test_sources(case: str) -> None:
    contents, packages, expected = SOURCES[case]
    used = UsedSources(packages=packages, contents={f"{number}.py": each for number, each in enumerate(contents)})
    assert begins_with_transformers(plan(), used) is expected


def test_custom_operators_may_change_imports() -> None:
    used = UsedSources(packages={"transformers"}, contents={"model.py": FIRST})
    assert not begins_with_transformers(plan(custom_ops={"modules": ["model"]}), used)
