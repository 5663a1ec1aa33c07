"""Each backend is called once for all methods, whether a recipe, `defaults` or a method names it. The delegates are
those that ExecuTorch makes from the lists as written."""

from __future__ import annotations

import copy
import importlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from etbuild.errors import InputError
from etbuild.guard.reads import watched_reads
from etbuild.inputs.sources import read_sources
from etbuild.inputs.user_code import importable
from etbuild.manifest import validate
from etbuild.plan.plan import from_manifest
from tests.helpers.examples_drawn import examples
from tests.helpers.fewest_calls import fewest

from .conftest import Lower, take
from .coreml_models import NEW, coreml, models
from .shared_layer import BIAS, INPUT, MODEL, VULKAN, WEIGHT, sharing, tail

DEMO = Path(__file__).with_name("demo_backend.py")


def with_recipe(recipe: str, decode: str) -> str:
    """Returns a manifest in which one method gets its partitioners from a recipe, and the other has its own."""
    methods = f"methods:\n  prefill: {{{INPUT}}}\n  decode: {{{INPUT}, partitioners: {decode}}}\n"
    return f"recipe: {recipe}\n{methods}"


def demo_recipe(*entries: object) -> str:
    return json.dumps({"name": "demo_backend:recipe", "kwargs": {"partitioners": entries}})


ADDMM = ["addmm", "permute_copy"]


def test_xnnpack_of_a_recipe_and_of_the_manifest_shares(lower: Lower) -> None:
    outcome, _ = lower(with_recipe("xnnpack_fp32", "[xnnpack]") + "checks: {max_duplicate_bytes: 0}\n", MODEL)
    assert (sharing(outcome)["shared_bytes"], sharing(outcome)["duplicate_bytes"]) == (WEIGHT + BIAS, 0)


def test_coreml_of_a_recipe_and_of_the_manifest_is_one_model(lower: Lower, tmp_path: Path) -> None:
    """Without the driver, ExecuTorch 1.5 makes two models, each with its own weights."""
    recipe = "{name: coreml_fp16, kwargs: {minimum_deployment_target: iOS18}}"
    outcome, _ = lower(with_recipe(recipe, coreml(NEW)), MODEL)
    assert [functions for _, functions in models(outcome, tmp_path)] == [["decode", "prefill"]]


def together(calls: list[dict[str, Any]]) -> list[list[str]]:
    """Returns the methods of each call of the backend that gets linear layers."""
    return [sorted(call["operators"]) for call in calls if call["backend"] == "JointBackend"]


@pytest.mark.parametrize("factory", ["say", "take"])
def test_a_backend_of_a_recipe_and_of_the_manifest_is_called_once(lower: Lower, factory: str) -> None:
    """The partitioner declares its backend, or only has the same class as another one."""
    own = take("addmm, permute_copy", "JointBackend").replace(":take", f":{factory}")
    recipe = demo_recipe([["sin"], "SingleBackend", "say"], [ADDMM, "JointBackend", factory])
    _, calls = lower(with_recipe(recipe, f"[{own}]"), MODEL)
    assert together(calls) == [["decode", "prefill"]]


def test_two_factories_of_one_backend_are_one_backend(lower: Lower) -> None:
    one = take("addmm, permute_copy", "JointBackend").replace(":take", ":say")
    other, first = one.replace("demo_backend:say", "other:say"), take("cos", "SingleBackend")
    _, calls = lower(tail(f"[{one}]", f"[{first}, {other}]"), MODEL, other="from demo_backend import say\n")
    assert together(calls) == [["decode", "prefill"]]


def test_a_recipe_that_contradicts_the_manifest_is_refused(lower: Lower) -> None:
    order = (["sin"], "JointBackend"), (ADDMM, "OtherJointBackend")
    reverse = [take(", ".join(operators), backend).replace(":take", ":say") for operators, backend in reversed(order)]
    outcome, calls = lower(with_recipe(demo_recipe(*order), f"[{', '.join(reverse)}]"), MODEL)
    assert (outcome.code, calls) == (2, [])
    assert "model.yaml:4:1: recipe: the orders of partitioners contradict each other" in outcome.err
    assert "`prefill`: JointBackend, OtherJointBackend" in outcome.err


def test_a_recipe_may_have_another_order_where_backends_look_at_one_method(lower: Lower) -> None:
    """XNNPACK is called twice here, and still shares weights."""
    own = take("sinh", "JointBackend").replace(":take", ":say")
    model = MODEL.replace("self.linear(x)", "self.linear(x).sinh()")
    outcome, calls = lower(with_recipe(demo_recipe([["sinh"], "JointBackend"], "xnnpack"), f"[xnnpack, {own}]"), model)
    assert sharing(outcome)["duplicate_bytes"] == 0
    assert [sorted(call["operators"]) for call in calls] == [["decode", "prefill"]]


def test_opposite_orders_are_lowered_where_one_of_the_backends_looks_at_one_method(lower: Lower) -> None:
    on_vulkan = '{backend: custom, options: {factory: "vulkan:create"}}'
    outcome, _ = lower(
        tail(f"[{on_vulkan}, xnnpack]", f"[xnnpack, {on_vulkan}]", limit=WEIGHT + BIAS), MODEL, vulkan=VULKAN
    )
    assert outcome.code == 0, outcome.err


# The operators that a partitioner takes, by the letter of its backend and its number. Each method has all of these
# operators. XNNPACK takes none of them.
TAKES = {"J1": ["sinh"], "J2": ["tan"], "O1": ["cosh"], "O2": ["atan"], "s1": ["erf"], "s2": ["expm1"]}
BACKENDS = {"J": "JointBackend", "O": "OtherJointBackend", "s": "SingleBackend"}
NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.linear = torch.nn.Linear(4, 4)

    def f(self, x):
        return self.linear(x).sinh().cosh() + x.erf().tan().atan().expm1()

    def g(self, x):
        return self.linear(x.expm1().erf()).atan().tan().cosh() * x.sinh()

    def h(self, x):
        return (self.linear(x.tan()).cosh() - x.sinh().expm1()).atan().erf()
"""


@dataclass(frozen=True)
class Layout:
    """Partitioners, written as `J1`, or `x` for XNNPACK.

    Attributes:
        recipe: The recipe's partitioners, for all methods or by method.
        defaults: The same for `defaults`. None: there are no defaults.
        own: The partitioners that methods have themselves.
    """

    recipe: list[str] | dict[str, list[str]]
    defaults: list[str] | dict[str, list[str]] | None
    own: dict[str, list[str]]

    def lists(self) -> dict[str, list[str]]:
        """Returns the partitioners that each method is lowered with, in order."""
        return {name: self._list(name) for name in "fgh"}

    def _list(self, name: str) -> list[str]:
        if name in self.own:
            return self.own[name]
        for said in (self.defaults, self.recipe):
            if isinstance(said, list) or (isinstance(said, dict) and (name in said or said is self.recipe)):
                return said.get(name, []) if isinstance(said, dict) else said
        raise AssertionError

    def manifest(self) -> dict[str, Any]:
        def entries(listed: list[str]) -> list[Any]:
            return [
                "xnnpack"
                if each == "x"
                else {
                    "backend": "custom",
                    "options": {
                        "factory": "demo_backend:say",
                        "kwargs": {"operators": TAKES[each], "backend": BACKENDS[each[0]]},
                    },
                }
                for each in listed
            ]

        def all_entries(said: Any, of: Any) -> Any:
            return {name: of(listed) for name, listed in said.items()} if isinstance(said, dict) else of(said)

        def pairs(listed: list[str]) -> list[Any]:
            return ["xnnpack" if each == "x" else [TAKES[each], BACKENDS[each[0]]] for each in listed]

        defaults = {} if self.defaults is None else {"partitioners": all_entries(self.defaults, entries)}
        return {
            "schema": "executorch-model/v1",
            "name": "net",
            "model": {"factory": "model:create"},
            "recipe": {"name": "demo_backend:recipe", "kwargs": {"partitioners": all_entries(self.recipe, pairs)}},
            "defaults": defaults,
            "methods": {
                name: {
                    "example_inputs": [{"shape": [2, 4]}],
                    **({"partitioners": entries(self.own[name])} if name in self.own else {}),
                }
                for name in "fgh"
            },
        }


def layouts() -> st.SearchStrategy[Layout]:
    listed = st.lists(st.sampled_from([*TAKES, "x"]), max_size=3, unique=True)
    by_method = st.dictionaries(st.sampled_from("fgh"), listed)

    def layout(recipe: Any, defaults: Any, own: dict[str, list[str]]) -> Layout:
        if isinstance(defaults, dict):  # a manifest must not repeat a key
            defaults = {name: each for name, each in defaults.items() if name not in own}
        return Layout(recipe, defaults, own)

    return st.builds(layout, listed | by_method, st.none() | listed | by_method, by_method)


class Project:
    """The exported methods of the model, with both ways to lower them."""

    def __init__(self, root: Path) -> None:
        import torch

        self.root = root
        namespace: dict[str, Any] = {}
        exec(NET, namespace)
        net = namespace["Net"]()
        self.input = torch.linspace(-1, 1, 8).reshape(2, 4)
        self.eager = {name: getattr(net, name)(self.input) for name in "fgh"}
        self.programs = {}
        for name in "fgh":
            net.forward = getattr(net, name)
            self.programs[name] = torch.export.export(net, (self.input,))

    def lower(self, layout: Layout) -> Any:
        """Lowers as a build does, from the manifest.

        Raises:
            InputError: The manifest is refused.
        """
        from etbuild import switches
        from etbuild.lower.lower_methods import lower_programs

        (self.root / "model.yaml").write_text(yaml.safe_dump(layout.manifest()))
        lower_plan = from_manifest(validate.load(self.root / "model.yaml").data).lower_plan
        with switches.lowering():
            return lower_programs(lower_plan, copy.deepcopy(self.programs), {})

    def lower_as_written(self, layout: Layout) -> Any:
        """Lowers with ExecuTorch only."""
        from executorch.exir import to_edge_transform_and_lower

        demo_backend = importlib.import_module("demo_backend")  # the project's, whose backends are registered

        def partitioner(each: str) -> Any:
            return demo_backend.xnnpack() if each == "x" else demo_backend.say(TAKES[each], BACKENDS[each[0]])

        lists = {name: [partitioner(each) for each in listed] for name, listed in layout.lists().items()}
        return to_edge_transform_and_lower(copy.deepcopy(self.programs), partitioner=lists)

    def calls(self) -> Counter[str]:
        """Returns how often each backend was called since the last call of this method."""
        record = self.root / "calls"
        found = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        record.unlink(missing_ok=True)
        return Counter(call["backend"] for call in found if call["call"] == "preprocess_multimethod")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    root = tmp_path_factory.mktemp("layouts")
    with pytest.MonkeyPatch.context() as patch, importable(read_sources({"demo_backend.py": DEMO}), [], watched_reads):
        patch.setenv("DEMO_BACKEND_RECORD", str(root / "calls"))
        yield Project(root)


def described(edge: Any) -> dict[str, Any]:
    """Returns, by method, the operators of its graph and the backend and compiled result of each delegate, in order."""
    from etbuild.lower import named_data

    found = {}
    for name in "fgh":
        module = edge.exported_program(name).graph_module
        delegates = [(each.backend_id, bytes(each.processed_bytes)) for each in named_data.delegates(module)]
        found[name] = [str(node.target) for node in module.graph.nodes if node.op == "call_function"], delegates
    return found


@examples(1)
@given(layouts())
@example(Layout({"f": ["J1", "x"], "h": ["O1", "J2"]}, {"g": ["s1", "O2", "J1"]}, {}))
@example(Layout(["x", "J1", "O1"], None, {"g": ["O2", "s1"], "h": ["J2", "x"]}))
def test_any_layout_gives_what_executorch_makes_of_it_in_the_fewest_calls(project: Project, layout: Layout) -> None:
    import torch

    rows = tuple(tuple((each[0], each) for each in listed) for listed in layout.lists().values())
    project.calls()
    try:
        edge = project.lower(layout)
    except InputError as error:
        refused: str | None = str(error)
    else:
        refused = None
    # Without torch, two calls of a factory count as two backends, and each may look at all methods.
    written = tuple(tuple((each.upper() if each != "x" else each, each) for each in row) for row in said(layout))
    assert (refused is None) == (None not in (fewest(rows), fewest(written)))
    if refused is not None:
        assert "the orders of partitioners contradict each other" in refused
        return
    calls = project.calls()
    for backend, name in (("J", "JointBackend"), ("O", "OtherJointBackend")):
        assert calls[name] == max(sum(kind == backend for kind, _ in row) for row in rows)
    assert described(edge) == described(project.lower_as_written(layout))
    for name in "fgh":
        result = edge.exported_program(name).module()(project.input)
        torch.testing.assert_close(result, project.eager[name])


def said(layout: Layout) -> list[list[str]]:
    """Returns the lists in the manifest itself."""
    lists = layout.lists()
    inherited = {} if layout.defaults is None else layout.defaults
    return [lists[name] for name in "fgh" if name in layout.own or not isinstance(inherited, dict) or name in inherited]
