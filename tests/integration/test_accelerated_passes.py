"""Switches of `etplugins.accelerate` for what passes repeat: each gives what the code gives that it replaces.

`test_acceleration.py` builds a program without each of them.
"""

from __future__ import annotations

import collections
import copy
import json
import logging
import typing
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack._passes import XNNPACKPassManager, convert_to_linear
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNAdd, XNNGraph, XNode
from executorch.exir import to_edge
from executorch.exir._serialize import _dataclass
from executorch.exir.pass_base import ExportPass, _ExportPassBase
from executorch.exir.pass_manager import ExportedProgramPassManager
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

from etplugins.accelerate import check_once, occasions, skip_idle_passes

Point = collections.namedtuple("Point", ["x", "y"])  # noqa: PYI024 - typed ones are classes of the same kind
TREES: list[Any] = [
    1,
    None,
    (),
    (1, [2, (3, None)], {"b": 4, "a": [5]}),
    immutable_list([1, immutable_dict(x=2, a=(3,))]),
    Point(1, (2, 3)),
    [Point([1], {"k": 2})],
    collections.OrderedDict(b=1, a=[2]),
    collections.defaultdict(list, b=[1], a=[2]),
    collections.deque([1, (2,)], maxlen=3),
    torch.Size([1, 2]),
    torch.return_types.max((1, 2)),
    (slice(1, 2), range(3), "text", {1, 2}),
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_trees_are_mapped_as_pytorch_maps_them(tree: Any) -> None:
    found = []
    for switches in ([], ["map_trees_in_one_walk"]):
        seen: list[Any] = []
        with occasions.entered(switches):

            def shown(leaf: Any, seen: list[Any] = seen) -> Any:
                seen.append(leaf)
                return ("of", leaf)

            mapped = pytree.tree_map(shown, tree)
            only = pytree.tree_map_only(int, str, tree)
            cut = pytree.tree_map(shown, tree, is_leaf=lambda each: isinstance(each, list))
            leaves = [list(pytree.tree_iter(tree)), pytree.tree_leaves(tree)]
            with pytest.raises(ValueError, match="no"):
                pytree.tree_map(fails, (tree, 1))
        found.append([(type(each), repr(each)) for each in (mapped, only, cut, seen, leaves)])
    assert found[0] == found[1]


def fails(leaf: object) -> None:
    raise ValueError("no")


def test_several_trees_are_mapped_together() -> None:
    with occasions.entered(["map_trees_in_one_walk"]):
        assert pytree.tree_map(lambda one, other: one + other, (1, [2]), (3, [4])) == (4, [6])
        with pytest.raises(ValueError, match="arity"):
            pytree.tree_map(lambda one, other: one + other, (1, 2), (1, 2, 3))


class Mixed(torch.nn.Module):
    """What the passes in `skip_idle_passes` change, if it is asked for."""

    def __init__(self, *wanted: str) -> None:
        super().__init__()
        self.wanted = wanted
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = self.linear(x).softmax(-1) * x
            x = x.chunk(2)[1].repeat(2, 1)
        if "number" in self.wanted:
            x = x + 1
        if "dtypes" in self.wanted:
            x = x * x.argmax(-1, keepdim=True)
        if "size" in self.wanted:
            x = x * x.shape[0]
        return x.t() if "transposed" in self.wanted else x


WANTED: list[tuple[str, ...]] = [(), ("number",), ("dtypes",), ("transposed",), ("size",), ("number", "size", "dtypes")]


def exported(*wanted: str, dynamic: bool = False) -> ExportedProgram:
    shapes = ({0: 2 * torch.export.Dim("rows", min=2, max=8)},) if dynamic else None
    return torch.export.export(Mixed(*wanted), (torch.ones(4, 4),), dynamic_shapes=shapes)


def edge(program: ExportedProgram) -> GraphModule:
    converted: GraphModule = to_edge(copy.deepcopy(program)).exported_program().graph_module
    return converted


def shown(module: GraphModule) -> list[Any]:
    """A graph with all that is known about its nodes. Names of symbols are shown as they are."""
    metas = [
        {key: str(value) for key, value in node.meta.items() if key not in ("from_node", "seq_nr")}
        for node in module.graph.nodes
    ]
    nodes = [(node.name, node.op, str(node.target), str(node.args), str(node.kwargs)) for node in module.graph.nodes]
    return [nodes, metas, [name for name, _ in module.named_buffers()], sorted(module.meta)]


@pytest.mark.parametrize(("wanted", "dynamic"), [*((wanted, False) for wanted in WANTED), ((), True)], ids=str)
def test_a_method_is_the_same_if_idle_passes_are_skipped(
    wanted: tuple[str, ...], dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = exported(*wanted, dynamic=dynamic)
    replayed: list[str] = []
    replay = _ExportPassBase.call_submodule

    def counting(self: Any, *arguments: Any) -> Any:
        replayed.append(type(self).__name__)
        return replay(self, *arguments)

    monkeypatch.setattr(_ExportPassBase, "call_submodule", counting)
    plain = shown(edge(program))
    before = collections.Counter(replayed)
    replayed.clear()
    with occasions.entered(["skip_idle_passes"]):
        found = shown(edge(program))
    assert dynamic or found == plain  # names of symbols count all symbols of the process
    skipped = before - collections.Counter(replayed)
    assert bool(skipped) is not dynamic
    if not wanted and not dynamic:
        assert skipped.keys() == {
            each.__name__ for each in (ReplaceBrokenOpsWithFunctionalOpsPass, ScalarToTensorPass, SymToTensorPass)
        } | {RemoveMixedTypeOperators.__name__}


IDLE = [
    NormalizeTransposePass,
    ReplaceBrokenOpsWithFunctionalOpsPass,
    ScalarToTensorPass,
    SymToTensorPass,
    RemoveMixedTypeOperators,
]


def test_the_passes_that_may_be_skipped_work_only_in_one_hook() -> None:
    assert set(skip_idle_passes._CHANGES) == set(IDLE)
    for each in IDLE:
        own = {name for name in vars(each) if not name.startswith("_")}
        assert own <= ({"call_operator", "call"} if each is ScalarToTensorPass else {"call_operator"})


def delegated() -> ExportedProgram:
    found: ExportedProgram = to_edge(exported()).exported_program()
    return found


def test_an_unchanged_program_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program, manager = delegated(), ExportedProgramPassManager([])
    checked = []
    monkeypatch.setattr(ExportedProgramPassManager, "check", lambda self, program: checked.append(program))
    with check_once._within_a_delegate():
        for _ in range(3):
            manager.check(copy.copy(program))
        assert len(checked) == 1
        node = next(node for node in program.graph.nodes if node.op == "call_function")
        node.meta["val"] = node.meta["val"].clone()
        manager.check(program)
        assert len(checked) == 2
        program.state_dict["linear.weight"] = torch.nn.Parameter(torch.ones(4, 4))
        manager.check(program)
        assert len(checked) == 3
        program.graph_signature.input_specs[0].target = "other"
        manager.check(program)
    assert len(checked) == 4


def test_a_program_that_has_become_wrong_is_refused() -> None:
    program, manager = delegated(), ExportedProgramPassManager([])
    with check_once._within_a_delegate():
        manager.check(program)
        del program.state_dict["linear.weight"]
        for _ in range(2):
            with pytest.raises(SpecViolationError, match="is not in the state dict"):
                manager.check(program)


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
def test_delegates_are_printed_for_messages_that_are_shown(
    level: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = to_edge(torch.export.export(torch.nn.ReLU(), (torch.ones(4, 4),))).exported_program()
    printed = []
    show = GraphModule.print_readable

    def counting(self: GraphModule, *arguments: Any, **options: Any) -> str:
        printed.append(self)
        return str(show(self, *arguments, **options))

    monkeypatch.setattr(GraphModule, "print_readable", counting)
    with caplog.at_level(level, convert_to_linear.logger.name), occasions.entered(["convert_without_printing"]):
        XNNPACKPassManager(program, [ConvertToLinearPass]).transform()
    assert len(printed) == (2 if level == logging.DEBUG else 0)
    assert GraphModule.print_readable is counting


def test_types_of_delegates_are_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = []
    resolve = typing.get_type_hints

    def counting(cls: type) -> dict[str, Any]:
        resolved.append(cls)
        return resolve(cls)

    add = XNode(xnode_union=XNNAdd(0, 1, 2, 0), debug_handle=7)
    graph = XNNGraph("0", [add, add], [], 3, [0, 1], [2], [])
    plain = json.dumps(graph, cls=_dataclass._DataclassEncoder)
    monkeypatch.setattr(typing, "get_type_hints", counting)
    with occasions.entered(["write_hints_once"]):
        assert json.dumps(graph, cls=_dataclass._DataclassEncoder) == plain
    assert len(resolved) == len(set(resolved)) > 2


def test_delegates_of_a_partitioner_have_the_same_bytes_with_all_of_them() -> None:
    programs = []
    names = ["replay_once", "map_trees_in_one_walk", "check_once", "skip_idle_passes"]
    for switches in ([], [*names, "convert_without_printing", "write_hints_once"]):
        torch.manual_seed(0)
        program = exported("number", "dtypes")
        with occasions.entered(switches):
            lowered = to_edge(program).to_backend(XnnpackPartitioner())
            programs.append(bytes(lowered.to_executorch().buffer))
    assert programs[0] == programs[1]


def test_other_passes_always_replay() -> None:
    with occasions.entered(["skip_idle_passes"]):
        module = ExportPass()(edge(exported())).graph_module
        assert ExportPass()(module).graph_module is not module
