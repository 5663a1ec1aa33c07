"""The switches of `etplugins.accelerate`: the bytes are the same with and without each, and all changes are undone."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import math
import operator
import os
import pickle
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack._passes.convert_to_linear import ConvertToLinearPass
from executorch.backends.xnnpack._passes.convert_to_sdpa import ConvertToSDPAPass
from executorch.backends.xnnpack._passes.convert_to_upsample_bilinear2d import ConvertToUpsampleBilinear2d
from executorch.backends.xnnpack.partition.graphs import bilinear_2d, sdpa
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import lowered_backend_module, to_edge, to_edge_transform_and_lower
from executorch.exir._serialize import _dataclass
from executorch.exir.backend import backend_api
from executorch.exir.backend.canonical_partitioners import group_partitioner
from executorch.exir.backend.canonical_partitioners.group_partitioner import GroupBasedPartitioner
from executorch.exir.dialects._ops import ops
from executorch.exir.pass_base import ExportPass, PassResult, _ExportPassBase
from executorch.exir.program import _program
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch._export.serde import schema, serialize
from torch._export.serde.union import _Union
from torch._export.verifier import SpecViolationError
from torch._higher_order_ops import while_loop
from torch._logging._internal import LazyTraceHandler, trace_log, trace_structured
from torch._subclasses.fake_tensor import FakeTensorMode, TensorMetadata, unset_fake_temporarily
from torch.export import exported_program
from torch.fx import Graph, GraphModule, Interpreter, proxy
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.operator_support import create_op_support
from torch.fx.passes.tools_common import legalize_graph
from torch.fx.traceback import NodeSource
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from etbuild import plugins, switches, workarounds
from etbuild.export import node_sources
from etbuild.export.node_sources import graphs_numbered, remove_addresses
from etbuild.files.zip_archive import canonical_archive
from etbuild.patching import replaced
from etplugins.accelerate import (
    annotate_where_possible,
    compute_values_once,
    match_where_possible,
    merge_by_sets,
    occasions,
    replay_once,
    sort_in_place,
    trace_if_asked,
)

from .conftest import Build

# Everything that the switches handle: matching patterns, folded and moved weights, several partitions, portable
# operators.
MODEL = """\
import torch
import torch.nn.functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.linears = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(12))
        self.prelu = torch.nn.PReLU(4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, image):
        x = self.prelu(self.norm(self.conv(image)))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = F.max_pool2d(torch.cat([x, x.sigmoid()], 1), 2).flatten(2)[:, :, :8]
        x = F.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros(8, 8))
        for linear in self.linears:
            x = linear(x).cumsum(-1)
        self.seen += 1
        return x * self.seen

def create():
    return Net().eval()
"""
MANIFEST = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: [xnnpack]}
methods: {forward: {example_inputs: [{shape: [1, 3, 8, 8]}]}}
named_data: {weights: {parameters: ["linears.*"]}}
"""


def artifacts(build: Build, *options: str) -> dict[str, bytes]:
    made = build(MANIFEST, *options, model=MODEL)
    assert made.code == 0, made.err
    return {name: made.read(name) for name in made.files}


@pytest.fixture(scope="module")
def plain() -> dict[str, bytes]:
    return {}


@pytest.mark.parametrize(
    "left_out", [None, *(pytest.param(switch, marks=pytest.mark.long) for switch in occasions.SWITCHES)]
)
def test_acceleration_does_not_change_the_bytes(
    left_out: str | None, build: Build, plain: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.update(plain or artifacts(build, "--no-accelerate"))
    on = tuple(name for name in occasions.SWITCHES if name != left_out)
    monkeypatch.setattr(occasions, "SWITCHES", on)
    assert artifacts(build) == plain


PLACES = [
    (GraphModule, "recompile"),
    (GraphModule, "_code"),
    (GraphModule, "__reduce__"),
    (backend_api, "_create_partitions_in_graph_module"),
    (NodeSource, "__deepcopy__"),
    (XnnpackBackend, "preprocess"),
    (ConvertToSDPAPass, "call"),
    (ConvertToUpsampleBilinear2d, "call"),
    (lowered_backend_module, "legalize_graph"),
    (XnnpackBackend, "copy_exported_program_for_preprocess"),
    (Interpreter, "call_function"),
    (_program, "_gen_edge_manager_for_partitioners"),
    (serialize, "_dict_to_dataclass"),
    (GroupBasedPartitioner, "_merge_partitions"),
    (FakeTensorMode, "_validate_cache_key"),
    (torch.utils._pytree, "tree_map"),
    (torch.utils._pytree, "tree_iter"),
    (_ExportPassBase, "call"),
    (ConvertToLinearPass, "call"),
    (_dataclass, "get_type_hints"),
    (proxy, "CapturedTraceback"),
    (serialize, "_dataclass_to_dict"),
    (_Union, "create"),
    (TensorMetadata, "_flatten_into"),
    (proxy_tensor, "_extract_tensor_metadata"),
    (symbolic_shapes, "_free_unbacked_symbols_with_path"),
    (trace_log, "handlers"),
    (exported_program, "_decompose_exported_program"),
]


def state() -> list[object]:
    return [vars(owner).get(name) for owner, name in PLACES]


def test_switches_are_undone_at_the_end() -> None:
    before = state()
    with occasions.lowering():
        assert all(one is not other for one, other in zip(before, state(), strict=True))
    assert all(one is other for one, other in zip(before, state(), strict=True))


def test_a_program_that_meets_no_limit_needs_no_switch_and_no_workaround(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, group = build(), plugins.group
    monkeypatch.setattr(
        plugins, "group", lambda name: {} if name in (switches.GROUP, workarounds.GROUP) else group(name)
    )
    other = build()
    assert (other.code, other.read("net.pte")) == (0, made.read("net.pte"))


def test_nothing_is_switched_in_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"torch": "2.13.0"}.get(name, "1.5.2"))
    with occasions.lowering():
        assert all(one is other for one, other in zip(before, state(), strict=True))


def test_what_a_pattern_needs_is_in_all_of_its_graphs() -> None:
    graphs = {ConvertToSDPAPass: sdpa.get_graphs(), ConvertToUpsampleBilinear2d: bilinear_2d.get_graphs()}
    assert graphs.keys() == match_where_possible.NEEDED.keys()
    for pass_class, patterns in graphs.items():
        assert patterns
        for pattern in patterns:
            needed = match_where_possible.NEEDED[pass_class]
            assert any(node.target == needed for node in pattern.graph.nodes), pass_class


def test_weights_are_shared_unless_their_storage_has_more_in_it() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = torch.nn.Parameter(torch.ones(4))
            self.part = torch.nn.Parameter(torch.ones(8)[:4])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.whole + self.part

    program = to_edge(torch.export.export(Net(), (torch.zeros(4),))).exported_program()
    with occasions.entered(["share_weights"]):
        copied = XnnpackBackend.copy_exported_program_for_preprocess(program, [])
    assert copied is not program
    assert copied.graph_module is not program.graph_module
    assert copied.state_dict["whole"] is program.state_dict["whole"]
    assert copied.state_dict["part"].untyped_storage().nbytes() == 16


WIDE = ops.edge.dim_order_ops._to_dim_order_copy.default


def shuffled_graph(chance: random.Random) -> GraphModule:
    """Makes a graph of additions of earlier nodes. Some are moved in front of the nodes that they read."""
    graph = Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(3)]
    checks = [operator.add, operator.le, torch.ops.aten.scalar_tensor.default]  # `legalize_graph` puts these first
    targets = [torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor, *checks]
    for _ in range(30):
        nodes.append(graph.call_function(chance.choice(targets), (chance.choice(nodes), chance.choice(nodes))))
    graph.output(nodes[-1])
    for node in chance.sample(nodes[3:], 10):
        chance.choice(nodes[:3]).append(node)
    return GraphModule(torch.nn.Module(), graph)


def sorted_in_place(module: GraphModule) -> GraphModule:
    with sort_in_place.sort_in_place():
        found: GraphModule = lowered_backend_module.legalize_graph(module)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_nodes_are_sorted_as_executorch_sorts_them(seed: int) -> None:
    described = []
    for sort in (legalize_graph, sorted_in_place):
        module = sort(shuffled_graph(random.Random(seed)))
        module.graph.lint()
        module.graph.erase_node(module.graph.call_function(torch.ops.aten.add.Tensor, ()))
        new = module.graph.call_function(torch.ops.aten.add.Tensor, ())  # the next free name must be the same too
        described.append(
            [
                (node.name, node.target, str(node.args), list(map(str, node.users)))
                for node in [*module.graph.nodes, new]
            ]
        )
    assert described[0] == described[1]


def proposed(seed: int) -> list[list[str]]:
    """The nodes of the partitions of a shuffled graph."""
    chance = random.Random(seed)
    module = legalize_graph(shuffled_graph(chance))
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    chance.shuffle(calls)
    groups = [calls[start : start + 3] for start in range(0, len(calls), 3)]
    partitioner = GroupBasedPartitioner(module, create_op_support(lambda modules, node: True), node_groups=groups)
    return [sorted(map(str, partition.nodes)) for partition in partitioner.propose_partitions()]


@pytest.mark.parametrize("seed", range(20))
def test_partitions_are_merged_as_executorch_merges_them(seed: int) -> None:
    expected = proposed(seed)
    with merge_by_sets.merge_by_sets():
        assert proposed(seed) == expected


def test_some_partitions_are_merged_and_some_are_not() -> None:
    counts = [len(proposed(seed)) for seed in range(20)]
    assert min(counts) < max(counts)


def test_nodes_after_a_node_are_found() -> None:
    module = legalize_graph(shuffled_graph(random.Random(0)))
    expected, found = group_partitioner._DependencyViewer(module), merge_by_sets._Viewer(module)
    assert found.fits()
    assert all(found.downstreams_of(node) == expected.downstreams_of(node) for node in module.graph.nodes)


def test_a_graph_that_has_changed_is_seen() -> None:
    module = legalize_graph(shuffled_graph(random.Random(0)))
    viewer = merge_by_sets._Viewer(module)
    first, *_, last = module.graph.nodes
    last.args = (first,)
    assert not viewer.fits()


def test_a_graph_in_another_order_is_seen() -> None:
    assert not merge_by_sets._Viewer(shuffled_graph(random.Random(0))).fits()


@pytest.mark.parametrize(("directory", "count"), [(None, 0), ("somewhere", 1)])
def test_messages_are_formatted_for_a_trace_that_somebody_asked_for(directory: str | None, count: int) -> None:
    formatted: list[None] = []
    handler = LazyTraceHandler(directory)
    handler.setLevel(logging.CRITICAL)  # nothing is written
    with replaced(trace_log, "handlers", [handler]), trace_if_asked.trace_if_asked():
        trace_structured("artifact", payload_fn=lambda: formatted.append(None))
    assert len(formatted) == count


@pytest.fixture
def namesake() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """An operator of another library that has the name of one of torchao's."""
    with torch.library._scoped_library("etbuild_test", "FRAGMENT") as library:
        library.define("quantize_affine(Tensor x) -> Tensor")
        library.impl("quantize_affine", torch.clone, "CPU")
        library.impl("quantize_affine", torch.empty_like, "Meta")
        yield torch.ops.etbuild_test.quantize_affine


def choose_by_torchao(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    chosen: tuple[torch.Tensor, ...] = torch.ops.torchao.choose_qparams_affine(x, "ASYMMETRIC", [1, 8], torch.int8)
    return chosen


def quantize_by_pt2e(x: torch.Tensor) -> torch.Tensor:
    quantized: torch.Tensor = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.5, 0, -128, 127, torch.int8)
    return quantized


def described(result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[object]:
    return [(each.shape, each.dtype) for each in (result if isinstance(result, tuple) else (result,))]


def test_of_other_libraries_only_quantization_is_cached(
    namesake: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    compute = FakeTensorMode._dispatch_impl

    def counting(self: FakeTensorMode, operator: Any, types: Any, args: Any, kwargs: Any) -> object:
        computed.append(operator)
        return compute(self, operator, types, args, kwargs)

    given = torch.zeros(37, 8)  # no other test has such tensors in the cache of this process
    with occasions.entered(["cache_quantization"]), FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(given)
        for operator, cached in ((choose_by_torchao, True), (quantize_by_pt2e, True), (namesake, False)):
            first = operator(x)
            with monkeypatch.context() as patch:
                patch.setattr(FakeTensorMode, "_dispatch_impl", counting)
                computed.clear()
                again = operator(x)
            assert bool(computed) is not cached
            assert again is not first
            with unset_fake_temporarily():
                assert described(again) == described(first) == described(operator(given))


def test_a_cycle_is_an_error_as_before() -> None:
    module = shuffled_graph(random.Random(1))
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    node.args = (node, node)
    with pytest.raises(RuntimeError, match="cycles"):
        sorted_in_place(module)


class Counting(ExportPass):
    """Counts the graphs that it replays."""

    seen = 0

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        type(self).seen += 1
        return super().call_operator(op, args, kwargs, meta)


class Renaming(ExportPass):
    """Changes an argument, and replays."""

    def call(self, graph_module: GraphModule) -> PassResult:
        for node in graph_module.graph.nodes:
            if node.op == "call_function" and len(node.args) == 2:
                node.args = (node.args[1], node.args[0])
        return super().call(graph_module)


def edge_module() -> GraphModule:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x - y).relu()

    program = torch.export.export(Net(), (torch.zeros(2), torch.ones(2)))
    module: GraphModule = to_edge(program).exported_program().graph_module
    return module


def test_an_unchanged_graph_is_replayed_once() -> None:
    with replay_once._within_a_delegate():
        first = ExportPass()(edge_module()).graph_module
        assert ExportPass()(first).graph_module is first


def test_a_graph_that_a_pass_changed_is_replayed_again() -> None:
    with replay_once._within_a_delegate():
        first = ExportPass()(edge_module()).graph_module
        assert Renaming()(first).graph_module is not first


def test_writing_another_value_counts_as_a_change() -> None:
    with replay_once._within_a_delegate():
        first = ExportPass()(edge_module()).graph_module
        placeholder = next(iter(first.graph.nodes))
        placeholder.meta["val"] = placeholder.meta["val"].clone()
        assert ExportPass()(first).graph_module is not first


def test_a_pass_that_acts_in_the_replay_replays() -> None:
    with replay_once._within_a_delegate():
        first = ExportPass()(edge_module()).graph_module
        Counting.seen = 0
        Counting()(first)
        assert Counting.seen == 2


def values(module: GraphModule) -> list[torch.Tensor]:
    return [node.meta["val"] for node in module.graph.nodes if node.op == "call_function"]


def test_a_replay_uses_the_values_of_the_replay_before() -> None:
    with occasions.entered(["compute_values_once"]):
        first = ExportPass()(edge_module()).graph_module
        second = ExportPass()(first).graph_module
    assert all(one is other for one, other in zip(values(first), values(second), strict=True))


def test_the_verifier_computes_no_value_again_and_still_finds_wrong_types(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    compute = compute_values_once._compute

    def counting(replay: Interpreter, target: Any, args: Any, kwargs: Any) -> Any:
        computed.append(target)
        return compute(replay, target, args, kwargs)

    monkeypatch.setattr(compute_values_once, "_compute", counting)
    with occasions.entered(["compute_values_once"]):
        module = ExportPass()(edge_module()).graph_module
        assert computed
        computed.clear()
        verifier = EXIREdgeDialectVerifier()
        verifier(module)
        assert not computed
        operator = next(node for node in module.graph.nodes if node.op == "call_function")
        operator.meta["val"] = operator.meta["val"].to(torch.int64)
        with pytest.raises(SpecViolationError, match="mismatched dtypes"):
            verifier(module)


def test_two_nodes_of_a_graph_never_share_a_value() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1) * (x + 1)

    module = to_edge(torch.export.export(Net(), (torch.zeros(2),))).exported_program().graph_module
    with occasions.entered(["compute_values_once"]):
        for _ in range(3):
            module = ExportPass()(module).graph_module
            assert len(set(map(id, values(module)))) == len(values(module)) > 2


class Widening(ExportPass):
    """Computes sums as 64-bit numbers."""

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        if op == ops.edge.aten.sub.Tensor:
            call = super().call_operator
            args = [call(WIDE, (value,), {"dtype": torch.float64}, meta) for value in args]
        return super().call_operator(op, tuple(args), kwargs, meta)


def test_what_follows_a_changed_node_is_computed_again() -> None:
    with occasions.entered(["compute_values_once"]):
        module = ExportPass()(edge_module()).graph_module
        assert [value.dtype for value in values(module)] == [torch.float32] * 2
        module = Widening()(module).graph_module
    assert [value.dtype for value in values(module)] == [torch.float64] * 4


def test_a_value_with_a_symbolic_size_is_not_taken_for_another_one() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.relu(), y.relu()

    shapes = ({0: torch.export.Dim("a", min=2, max=8)}, {0: torch.export.Dim("b", min=2, max=8)})
    program = torch.export.export(Net(), (torch.zeros(4), torch.zeros(4)), dynamic_shapes=shapes)
    module = to_edge(program).exported_program().graph_module
    with occasions.entered(["compute_values_once"]):
        seen = []
        for _ in range(3):
            module = ExportPass()(module).graph_module
            seen.append(values(module))
            first, second = (value.shape[0] for value in seen[-1])
            assert str(first) != str(second)
    assert all(one is other for one, other in zip(seen[0], seen[-1], strict=True))


@pytest.mark.parametrize(
    ("supported", "traces"), [(True, 1), (False, 2)], ids=["kept operators are lowered", "one is decomposed"]
)
def test_a_method_is_traced_as_often_as_there_is_something_to_decompose(
    supported: bool, traces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.hardswish(x)

    calls = []
    decompose = exported_program._decompose_exported_program

    def counting(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return decompose(*arguments, **named)

    monkeypatch.setattr(exported_program, "_decompose_exported_program", counting)
    program = torch.export.export(Net(), (torch.zeros(2, dtype=torch.float32 if supported else torch.float64),))
    counted, made = [], []
    for on in (["match_where_possible"], ["match_where_possible", "decompose_if_needed"]):
        calls.clear()
        with occasions.entered(on):
            made.append(to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer)
        counted.append(len(calls))
    assert counted == [3, traces]
    assert made[0] == made[1]


def test_the_body_of_a_loop_is_searched_for_operators_to_decompose() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def body(i: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return i + 1, torch.nn.functional.hardswish(y)

            return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))[1]

    program = torch.export.export(Net(), (torch.zeros(2),))
    found = []
    for on in ([], ["decompose_if_needed"]):
        with occasions.entered(on):
            graph = to_edge_transform_and_lower(program).exported_program().graph_module
        found.append([str(node.target) for part in graph.modules() for node in getattr(part, "graph", Graph()).nodes])
    assert found[0] == found[1]


def test_a_module_compiles_when_it_is_called_or_looked_into() -> None:
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])
    with occasions.entered(["compile_on_demand"]):
        module = edge_module()
        assert "_code" not in vars(module)
        assert module(x, y)[0].tolist() == [0.0, 1.0]
        for node in module.graph.nodes:
            if node.op == "call_function" and len(node.args) == 2:
                node.args = (node.args[1], node.args[0])
        module.recompile()
        assert module(x, y)[0].tolist() == [2.0, 0.0]
        module.recompile()
        assert "relu" in module.code
        untouched = edge_module()
    assert untouched(x, y)[0].tolist() == [0.0, 1.0]


class Branching(torch.nn.Module):
    """A state, a branch and a dimension of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.shape[0])
        y: torch.Tensor = torch.cond(x.sum() > 0, lambda x: self.layer(x) * self.seen, lambda x: x.sin(), (x,))
        return y


@pytest.mark.parametrize("strict", [False, True])
def test_a_faster_export_has_the_same_bytes(strict: bool) -> None:
    found = []
    for exporting, saving in [(occasions.exporting, occasions.saving), (contextlib.nullcontext,) * 2]:
        torch.manual_seed(0)
        with exporting(), graphs_numbered():
            shapes = ({0: torch.export.Dim("rows", min=2)},)
            net = Branching()
            program = torch.export.export(net, (torch.ones(4, 3),), dynamic_shapes=shapes, strict=strict)
        node_sources.restore_names(program, net, net)
        remove_addresses(program.graph_module)
        for graph in program.graph_module.modules():
            for node in graph.graph.nodes if isinstance(graph, GraphModule) else ():
                node.meta.pop("stack_trace", None)  # these count the modules that were compiled
        file = io.BytesIO()
        with saving():
            torch.export.save(program, file)
        ran = program.module()(torch.ones(5, 3))
        found.append((canonical_archive(file.getvalue()), ran.tolist()))
    assert found[0] == found[1]


def test_lines_are_described_as_torch_describes_them() -> None:
    torch_describes = proxy.CapturedTraceback

    def described(depth: int) -> list[traceback.StackSummary]:
        if depth:
            return described(depth - 1)
        return [each.extract().summary() for each in (torch_describes, proxy.CapturedTraceback)]

    def nowhere() -> list[traceback.StackSummary]:
        return described(3)

    nowhere.__code__ = nowhere.__code__.replace(co_linetable=b"")  # code without lines
    with occasions.entered(["describe_lines_once"]):
        for expected, found in (described(2), described(5), nowhere()):
            assert found == expected
            assert found.format() == expected.format()


class Formats(torch.nn.Module):
    """Tensors of several dtypes and orders in memory, parts of others, and sizes that depend on data."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        last = x.to(memory_format=torch.channels_last)
        part = last[:, 1:].sin()
        return last.double(), last.half(), part, part.transpose(0, 1).cos(), x.cos(), x[1:].cos(), x.nonzero() + 1


@pytest.mark.parametrize("dims", [None, {0: torch.export.Dim("rows", min=3)}])
def test_tensors_are_described_as_torch_describes_them(dims: dict[int, object] | None) -> None:
    kinds = ("val", "tensor_meta", "unbacked_bindings")
    found = []
    for exporting in (contextlib.nullcontext, occasions.exporting):
        with exporting():
            program = torch.export.export(Formats(), (torch.ones(4, 3, 2, 5),), dynamic_shapes=(dims,))
        nodes = list(program.graph.nodes)
        found.append([(node.name, *(str(node.meta.get(kind)) for kind in kinds)) for node in nodes])
        formats = [node.meta["tensor_meta"].memory_format for node in nodes if "tensor_meta" in node.meta]
        assert {torch.contiguous_format, torch.channels_last} <= {*formats}
        assert any(node.meta.get("unbacked_bindings") for node in nodes)
        qparams = [node.meta["tensor_meta"].qparams for node in nodes if "tensor_meta" in node.meta]
        assert len({*map(id, qparams)}) == len(qparams)  # a change for one node is none for another
    assert found[0] == found[1]


def saved_and_read(value: Any) -> tuple[bytes, Any]:
    """The JSON text of an argument of a node, and the argument that is read from it."""
    text = serialize._to_json_bytes(value)
    return text, serialize._bytes_to_dataclass(type(value), text)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("as_float", 1.5),
        ("as_float", math.inf),
        ("as_floats", [-math.inf, math.nan]),
        ("as_none", True),
        ("as_scalar_type", schema.ScalarType.HALF),
        ("as_sym_int", schema.SymIntArgument.create(as_name="s0")),
        ("as_tensor", schema.TensorArgument("x")),
        ("as_string_to_argument", {"key": schema.Argument.create(as_bools=[True, False])}),
        ("as_optional_tensors", [schema.OptionalTensorArgument.create(as_none=True)]),
    ],
)
def test_arguments_are_saved_and_read_as_torch_does_it(kind: str, value: Any) -> None:
    expected, _ = saved_and_read(schema.Argument.create(**{kind: value}))
    with occasions.saving(), occasions.entered(["read_hints_once"]):
        argument = schema.Argument.create(**{kind: value})
        found, read = saved_and_read(argument)
    assert found == expected
    assert (argument.type, argument.value) == (kind, value)
    assert (type(read), read.type) == (schema.Argument, kind)
    assert saved_and_read(read)[0] == expected


@pytest.mark.parametrize("fields", [{}, {"as_int": 1, "as_bool": True}, {"as_nothing": 1}])
def test_a_wrong_argument_is_refused_as_before(fields: dict[str, object]) -> None:
    for switched in (contextlib.nullcontext(), occasions.entered(["serialize_plainly", "read_hints_once"])):
        with switched:
            with pytest.raises((AssertionError, TypeError)):
                schema.Argument.create(**fields)
            with pytest.raises((AssertionError, KeyError)):
                serialize._dict_to_dataclass(schema.Argument, fields)
            with pytest.raises(AssertionError, match="expected dict"):
                serialize._dict_to_dataclass(schema.Argument, [fields])


@pytest.mark.parametrize(
    ("switched", "owner", "name"),
    [
        (occasions.exporting, proxy, "CapturedTraceback"),
        (occasions.saving, GraphModule, "print_readable"),
        (occasions.saving, serialize, "_dataclass_to_dict"),
        (occasions.exporting, GraphModule, "recompile"),
        (occasions.saving, serialize, "canonicalize"),
        (occasions.quantizing, xnnpack_quantizer_utils, "_do_annotate_conv_bn"),
    ],
)
def test_switches_of_exports_are_undone_at_the_end(
    switched: Callable[[], AbstractContextManager[None]], owner: object, name: str
) -> None:
    before = vars(owner)[name]
    with switched():
        assert vars(owner)[name] is not before
    assert vars(owner)[name] is before


def test_a_module_can_be_pickled_inside() -> None:
    with occasions.entered(["compile_on_demand"]):
        module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
        again = pickle.loads(pickle.dumps(module))
    assert again(torch.tensor([-1.0, 1.0])).tolist() == [0.0, 1.0]


def test_delegates_are_lowered_by_several_processes(build: Build, plain: dict[str, bytes]) -> None:
    plain.update(plain or artifacts(build, "--no-accelerate"))
    assert artifacts(build, "--jobs", "3") == plain


def test_what_fails_in_a_fork_is_tried_again_in_the_parent(monkeypatch: pytest.MonkeyPatch, build: Build) -> None:
    def preprocess(program: object, specs: object) -> None:
        raise RuntimeError(f"process {os.getpid()} cannot")

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(preprocess))
    made = build(MANIFEST, "--jobs", "2", model=MODEL)
    assert made.code == 1
    assert f"methods.forward: lowering forward failed: RuntimeError: process {os.getpid()} cannot" in made.err


IMPORTS = """\
import sys
from etplugins.accelerate.occasions import importing
with importing():
    import executorch.exir
assert "torch._inductor.lowering" not in sys.modules
assert "torch._inductor.fx_passes.post_grad" not in sys.modules

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch.export import _remove_auto_functionalized_pass as importer
graph = torch.fx.Graph()
graph.output(graph.placeholder("x"))
importer.decompose_auto_functionalized(graph)
assert "torch._inductor.lowering" not in sys.modules
with graph.inserting_before(graph.output_node()):
    graph.call_function(auto_functionalized_v2, (torch.ops.aten.relu_.default,))
try:
    importer.decompose_auto_functionalized(graph)
except Exception as error:
    assert "post_grad" in str(error.__traceback__.tb_next.tb_next.tb_frame.f_code.co_filename), error
assert "torch._inductor.lowering" in sys.modules
"""


def test_inductor_is_imported_for_programs_that_need_it() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)


def test_the_module_replaces_its_stand_in() -> None:
    looks = "from torch._inductor.fx_passes.post_grad import post_grad_passes"
    code = f"from etplugins.accelerate.occasions import importing\nwith importing():\n    {looks}\n{looks}\n"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


class Normal(torch.nn.Module):
    """`unfolded` adds a batch norm that no convolution precedes, so that nothing can fold it."""

    def __init__(self, unfolded: bool) -> None:
        super().__init__()
        self.before = torch.nn.BatchNorm2d(2) if unfolded else torch.nn.Identity()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.before(x)) + x.mean()


@pytest.mark.parametrize(
    ("prepare", "unfolded", "exported"),
    [(prepare_pt2e, False, 0), (prepare_pt2e, True, 12), (prepare_qat_pt2e, False, 12)],
    ids=["batch norm is folded", "a batch norm is left", "training"],
)
def test_patterns_with_a_batch_norm_are_searched_where_there_is_one(
    prepare: Any, unfolded: bool, exported: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Normal(unfolded).train(prepare is prepare_qat_pt2e)
    program = torch.export.export(module, (torch.randn(1, 2, 8, 8),))
    patterns = []
    make = xnnpack_quantizer_utils._get_aten_graph_module_for_pattern

    def counted(*arguments: Any) -> GraphModule:
        patterns.append(make(*arguments))
        return patterns[-1]

    def annotated() -> tuple[str, list[str], bytes]:
        quantizer = XNNPACKQuantizer()
        quantizer.set_global(get_symmetric_quantization_config(is_qat=prepare is prepare_qat_pt2e))
        torch.manual_seed(0)
        prepared = prepare(program.module(), quantizer)
        found = [repr(node.meta.get(Q_ANNOTATION_KEY)) for node in prepared.graph.nodes]
        return str(prepared.graph), found, torch.get_rng_state().numpy().tobytes()

    plain = annotated()
    monkeypatch.setattr(xnnpack_quantizer_utils, "_get_aten_graph_module_for_pattern", counted)
    with annotate_where_possible.annotate_where_possible():
        assert annotated() == plain
    assert len(patterns) == exported
    assert all(annotate_where_possible.has_batch_norm(pattern) for pattern in patterns)
