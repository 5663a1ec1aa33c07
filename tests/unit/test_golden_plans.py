"""The plans of the examples equal their golden files, because keys depend on each byte of them."""

from pathlib import Path

import pytest

from etbuild.cli.main import main
from etbuild.manifest import validate
from etbuild.plan.parts import TensorExample
from etbuild.plan.plan import from_manifest
from etplugins.model_tests import parts as planned
from tests.conftest import EXAMPLES, MANIFESTS, variant, variant_options

GOLDEN = Path(__file__).parents[1] / "golden/plans"
PATHS = MANIFESTS | {
    "fitness": EXAMPLES / "monorepo/apps/fitness/fitness.yaml",
    "gesture": EXAMPLES / "monorepo/apps/gesture/gesture.yaml",
}
PARTS = ("plan", "export-plan", "lower-plan")


@pytest.mark.parametrize("name", PATHS)
def test_an_example_has_its_plans(name: str, tmp_path: Path, update_golden: bool) -> None:
    """The golden file has a line for each plan: the whole plan, its parts for export and lowering, and the plan of each
    method."""
    methods = sorted(validate.load(PATHS[name], variant=variant(name)).data["methods"])
    options = [*variant_options(name), *(f"--{part}={tmp_path / part}" for part in PARTS)]
    options += [f"--method-plan={method}={tmp_path / method}.method" for method in methods]
    assert main(["plan", str(PATHS[name]), *options]) == 0
    files = [*PARTS, *(f"{method}.method" for method in methods)]
    plans = b"".join((tmp_path / file).read_bytes().rstrip(b"\n") + b"\n" for file in files)
    golden = GOLDEN / f"{name}.jsonl"
    if update_golden:
        golden.write_bytes(plans)
    assert golden.read_bytes() == plans


@pytest.mark.parametrize("name", PATHS)
def test_the_random_integers_of_an_example_differ(name: str) -> None:
    """They are the numbers of the example input. If that has only one, the manifest says which others there are."""
    loaded = validate.load(PATHS[name], variant=variant(name))
    plan = from_manifest(loaded.data)
    for method, tests in planned.tests_of(loaded.data, plan.methods).methods.items():
        leaves = [leaf for leaf, _ in plan.export_plan.methods[method].leaves(())]
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, TensorExample) and leaf.dtype.startswith(("int", "uint")) and leaf.fill != "arange":
                assert tests.ranges[index : index + 1] not in ((), (None,)), (method, index)
