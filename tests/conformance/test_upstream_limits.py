"""Meets each limit of `upstream_limits.py` with plain PyTorch and ExecuTorch, without the driver.

A test that fails here is good news: upstream has fixed a limit, and the message says what can go.
"""

from __future__ import annotations

import functools
import io
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import executorch.kernels.quantized  # registers the operators of quantized embeddings
import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.sym_util import eval_upper_bound
from executorch.runtime import Runtime
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._subclasses.complex_tensor import ComplexTensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram, export
from torchao.quantization import IntxWeightOnlyConfig, quantize_
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e import allow_exported_model_train_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.utils import unwrap_tensor_subclass

from tests.conformance.upstream_limits import DEEDS, DOCUMENTED, LIMITS, NOT_REPORTED, UpstreamLimit
from tests.helpers.partitions import partitions, waiting_groups

TOOLCHAIN = Path(__file__).parents[2] / "toolchain"
REPORT = r"https://github\.com/pytorch/(executorch|pytorch|ao)/(issues|pull)/\d+"
X = torch.arange(8.0).reshape(2, 4) - 3
IMAGE = torch.ones(1, 3, 8, 8)


class Net(nn.Module):
    """A module whose `forward` is a function of the module and its inputs."""

    def __init__(self, function: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


Run = Callable[..., Any]
RUN = """\
import sys, torch
import executorch.kernels.quantized
from executorch.runtime import Runtime
Runtime.get().load_program(sys.argv[1]).load_method("forward").execute(torch.load(sys.argv[2]))
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Lowers a module, and runs it in ExecuTorch's runtime: `run(module, x)` returns its first result. With
    `process=True` it runs in a process of its own, and the exit code is returned."""

    def lowered_and_run(
        module: nn.Module, *inputs: torch.Tensor, partitioners: tuple[Any, ...] = (), process: bool = False
    ) -> Any:
        path = tmp_path / "net.pte"
        with path.open("wb") as file:
            lower(module, *inputs, partitioners=partitioners).to_executorch().write_to_file(file)
        if process:
            torch.save(list(inputs), tmp_path / "inputs")
            return subprocess.run([sys.executable, "-c", RUN, path, tmp_path / "inputs"], check=False).returncode
        return Runtime.get().load_program(path).load_method("forward").execute(list(inputs))[0]

    return lowered_and_run


def lower(module: nn.Module, *inputs: torch.Tensor, partitioners: tuple[Any, ...] = ()) -> EdgeProgramManager:
    with torch.no_grad():
        return to_edge_transform_and_lower(export(module.eval(), inputs), partitioner=list(partitioners))


def differs(run: Run, module: nn.Module, *inputs: torch.Tensor, **options: Any) -> bool:
    with torch.no_grad():
        return not torch.allclose(run(module, *inputs, **options).double(), module(*inputs).double(), atol=1e-4)


def fails(said: str, action: Callable[[], object]) -> bool:
    """Whether an action fails with a message."""
    try:
        action()
    except Exception as error:  # upstream's errors have no common base class
        if said in str(error):
            return True
        raise
    return False


PROBES: dict[str, Callable[[Run], bool]] = {}
"""For each limit, a function that returns whether it is still there."""


def probe(name: str) -> Callable[[Callable[[Run], bool]], Callable[[Run], bool]]:
    def register(function: Callable[[Run], bool]) -> Callable[[Run], bool]:
        PROBES[name] = function
        return function

    return register


@probe("kernels")
def _(run: Run) -> bool:
    return fails("Failed to load method", lambda: run(Net(lambda self, x: x.sort()[0]), X))


@probe("rows-by-tensors")
def _(run: Run) -> bool:
    del run
    return fails("Could not guard on data-dependent", lambda: lower(Net(lambda self, x: x[x[0].argmax()] * 2), X))


@probe("floats-of-sizes")
def _(run: Run) -> bool:
    del run
    half = Net(lambda self, x: x * math.ceil(0.5 * x.shape[0]))
    exported = export(half, (torch.ones(6, 2),), dynamic_shapes={"inputs": ({0: Dim("rows", max=9)},)})
    try:
        to_edge_transform_and_lower(exported)
    except AssertionError:  # without a message
        return True
    return False


@probe("nonzero")
def _(run: Run) -> bool:
    return differs(run, Net(lambda self, x: x.nonzero()), X)


@probe("aliases-of-formats")
def _(run: Run) -> bool:
    cut = Net(lambda self, x: x.to(memory_format=torch.channels_last).relu()[:, :, :8])
    return fails("execute() failed", lambda: run(cut, torch.ones(1, 2, 8, 8)))


@probe("images-without-batch")
def _(run: Run) -> bool:
    partitioners = (XnnpackPartitioner(),)
    return fails("ChannelsLast", lambda: lower(nn.MaxPool2d(2), torch.ones(3, 8, 8), partitioners=partitioners))


def quantized(module: nn.Module, x: torch.Tensor, dynamic: bool = False, shapes: Any = None) -> nn.Module:
    """The module with 8 bits by XNNPACK's quantizer. `shapes` are the dynamic shapes of its input."""
    config = get_symmetric_quantization_config(is_dynamic=dynamic, is_per_channel=True)
    exported = export(module.eval(), (x,), dynamic_shapes=shapes).module()
    prepared = prepare_pt2e(exported, XNNPACKQuantizer().set_global(config))
    prepared(x)
    converted = convert_pt2e(prepared)
    allow_exported_model_train_eval(converted)
    return Net(lambda self, x: self.net(x), net=converted)


@probe("layouts-of-dynamic-inputs")
def _(run: Run) -> bool:
    image = torch.randn(1, 8, 8, 8)
    net = Net(lambda self, x: self.conv(nn.functional.silu(x)), conv=nn.Conv2d(8, 16, 3, 2, 1))
    return differs(run, quantized(net, image, dynamic=True), image, partitioners=(XnnpackPartitioner(),))


@probe("convolutions-of-one-input")
def _(run: Run) -> bool:
    image = torch.randn(1, 4, 8, 8)
    net = Net(lambda self, x: self.conv(x) + self.short(x), conv=nn.Conv2d(4, 4, 3, 1, 1), short=nn.Conv2d(4, 4, 1))
    return differs(run, quantized(net, image, dynamic=True), image, partitioners=(XnnpackPartitioner(),))


@probe("dynamic-layers-after-images")
def _(run: Run) -> bool:
    image = torch.randn(1, 4, 8, 8)
    net = Net(lambda self, x: self.linear(self.conv(x)), conv=nn.Conv2d(4, 4, 1), linear=nn.Linear(8, 8))
    net, partitioners = quantized(net, image, dynamic=True), (XnnpackPartitioner(),)
    return fails("should both be quantized", lambda: lower(net, image, partitioners=partitioners))


@probe("xnnpack-bias-twice")
def _(run: Run) -> bool:
    net = Net(lambda self, x: self.linear(self.linear(x).relu()), linear=nn.Linear(4, 4))
    return differs(run, quantized(net, X), X, partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-kernel-twice")
def _(run: Run) -> bool:
    net, partitioners = Net(lambda self, x: self.conv(self.conv(x)), conv=nn.Conv1d(2, 2, 1)), (XnnpackPartitioner(),)
    return fails("Conv1dUnsqueezePass", lambda: lower(net, X[None], partitioners=partitioners))


@probe("xnnpack-transposed-twice")
def _(run: Run) -> bool:
    net = Net(lambda self, x: self.conv(nn.functional.conv_transpose2d(x, self.conv.weight)), conv=nn.Conv2d(3, 3, 2))
    return differs(run, net, IMAGE, partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-own-weight")
def _(run: Run) -> bool:
    net = Net(lambda self, x: self.linear(self.linear.weight) + x, linear=nn.Linear(4, 4))
    return bool(run(net, X[:1], partitioners=(XnnpackPartitioner(),), process=True) == -signal.SIGSEGV)


@probe("xnnpack-prelu")
def _(run: Run) -> bool:
    net, partitioners = Net(lambda self, x: self.prelu(x), prelu=nn.PReLU()), (XnnpackPartitioner(),)
    return fails("ChannelsLastTaggedReshapePass", lambda: lower(net, X, partitioners=partitioners))


@probe("xnnpack-dynamic-sizes")
def _(run: Run) -> bool:
    del run
    sizes = {0: Dim("n", min=2, max=4), 2: Dim("m", min=2, max=8)}
    program = export(nn.Conv1d(3, 3, 3, padding=1), (torch.ones(2, 3, 4),), dynamic_shapes=(sizes,))
    partitioner = [XnnpackPartitioner()]
    return fails("only supports 1 dynamic", lambda: to_edge_transform_and_lower(program, partitioner=partitioner))


@probe("moved-buffers")
def _(run: Run) -> bool:
    def move(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.first.copy_(self.second)
        return x + 1

    lowered = lower(Net(move, first=torch.zeros(4), second=torch.ones(4)), X).to_executorch()
    return not lowered.exported_program().graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)


def branches(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.cond(x[0, 0] > 0, lambda v: v * 2, lambda v: v - 7, (x,))
    return found


@probe("overwritten-branches")
def _(run: Run) -> bool:
    return differs(run, Net(lambda _, x: branches(x) + 3 * branches(x + 1)), X)


@probe("views-of-branches")
def _(run: Run) -> bool:
    return differs(run, Net(lambda _, x: branches(x).reshape(4, 2) + 1), X)


@probe("views-of-loops")
def _(run: Run) -> bool:
    del run
    rows = Net(lambda _, x: torch_map(lambda row: row * 2, x).reshape(4, 2) + 1)
    return fails("Guard shape_dynamism_eq_base failed", lambda: lower(rows, X).to_executorch())


@probe("buffers-of-one-value")
def _(run: Run) -> bool:
    def write(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.first.copy_(x)
        self.second.copy_(x)
        return x + 1

    net = Net(write, first=torch.zeros(2, 4), second=torch.ones(2, 4))
    return fails("is not in the correct order", lambda: lower(net, X))


@probe("xnnpack-addmm")
def _(run: Run) -> bool:
    net = Net(lambda self, x: torch.addmm(self.bias, x, self.weight, alpha=2), bias=torch.ones(4), weight=torch.eye(4))
    return differs(run, net, X, partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-rsqrt")
def _(run: Run) -> bool:
    found = run(Net(lambda self, x: x.rsqrt()), torch.zeros(2, 4), partitioners=(XnnpackPartitioner(),))
    return bool(found.isnan().all())


@probe("xnnpack-sigmoid")
def _(run: Run) -> bool:
    found = run(Net(lambda self, x: x.sigmoid()), torch.full((2, 4), -1e30), partitioners=(XnnpackPartitioner(),))
    return bool(found.isnan().all())


@probe("xnnpack-max")
def _(run: Run) -> bool:
    del run
    net, partitioners = Net(lambda self, x: x.max(-1, keepdim=True).values), (XnnpackPartitioner(),)
    return fails("only supports dim == 2", lambda: lower(net, IMAGE, partitioners=partitioners))


@probe("xnnpack-copied-results")
def _(run: Run) -> bool:
    del run
    net = Net(lambda self, x: (y := x.relu()).cumsum(0) + y.clone().cumsum(1))
    return fails("already in the inputs", lambda: lower(net, X, partitioners=(XnnpackPartitioner(),)))


@probe("xnnpack-cycles")
def _(run: Run) -> bool:
    del run
    delegates = {frozenset(node.name for node in each.nodes) for each in partitions(waiting_groups())}
    return delegates == {frozenset({"first", "last", "other"}), frozenset({"near", "far"})}


@probe("xnnpack-softmax")
def _(run: Run) -> bool:
    net = Net(lambda self, x: self.conv(x).softmax(-1), conv=nn.Conv2d(3, 4, 1))
    return differs(run, net, torch.randn(1, 3, 4, 4), partitioners=(XnnpackPartitioner(),))


@probe("memory-of-views")
def _(run: Run) -> bool:
    del run
    net = Net(lambda self, x: (x.unsqueeze(2) * torch.cat([x, x], 1).unsqueeze(1)).view(1, -1, x.shape[1]).sum(1))
    exported = export(net, (torch.ones(1, 8),), dynamic_shapes={"inputs": ({1: Dim("size", min=2, max=16)},)})
    content = to_edge_transform_and_lower(exported).to_executorch().buffer
    return fails("Failed to load method", lambda: Runtime.get().load_program(content).load_method("forward"))


@probe("size-of-the-example")
def _(run: Run) -> bool:
    del run

    def zeros(self: Any, x: torch.Tensor) -> torch.Tensor:
        both = 2 * x.shape[0] * x.shape[0]
        return x.new_zeros(both // (both // x.shape[0]))

    exported = export(Net(zeros), (torch.ones(8),), dynamic_shapes={"inputs": ({0: Dim("size", min=2, max=16)},)})
    (node,) = exported.graph.output_node().all_input_nodes
    return bool(eval_upper_bound(node.meta["val"].shape[0]) == 8)


@probe("xnnpack-scale")
def _(run: Run) -> bool:
    net = Net(lambda self, x: nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear"))
    return differs(run, net, torch.randn(1, 3, 4, 4), partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-written-weight")
def _(run: Run) -> bool:
    def multiply(self: Any, x: torch.Tensor) -> Any:
        found = x @ self.state
        self.state.copy_(found * 0.5)
        return found

    lowered = lower(Net(multiply, state=torch.eye(2)), X[:, :2], partitioners=(XnnpackPartitioner(),))
    return not lowered.exported_program().graph_signature.buffers_to_mutate


@probe("xnnpack-quantized-input")
def _(run: Run) -> bool:
    image = IMAGE.to(memory_format=torch.channels_last)
    net = quantized(Net(lambda self, x: self.linear(x), linear=nn.Linear(8, 8)), image)
    return fails("execute() failed", lambda: run(net, image, partitioners=(XnnpackPartitioner(),)))


@probe("xnnpack-borders")
def _(run: Run) -> bool:
    def read_twice(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.linear(x)
        return found, found[..., None] * 2

    net = quantized(Net(read_twice, linear=nn.Linear(4, 4)), X)
    return not torch.allclose(run(net, X, partitioners=(XnnpackPartitioner(),)), net(X)[0], atol=1e-4)


@probe("layouts-of-quantized-results")
def _(run: Run) -> bool:
    image = torch.randn(2, 8, 8, 8)
    net = Net(lambda self, x: nn.functional.softplus(self.conv(x)), conv=nn.Conv2d(8, 8, 1))
    return differs(run, quantized(net, image), image, partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-conv1d-floats")
def _(run: Run) -> bool:
    net = quantized(Net(lambda self, x: self.conv(self.conv(x).relu()), conv=nn.Conv1d(2, 2, 1)), X[None])
    return fails("Failed to load method", lambda: run(net, X[None], partitioners=(XnnpackPartitioner(),)))


@probe("xnnpack-batch-norms")
def _(run: Run) -> bool:
    first, second = nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3, affine=False)
    second.running_var.fill_(9.0)
    net = Net(lambda self, x: second(first(x).relu()), norms=nn.ModuleList([first, second]))
    return differs(run, net.eval(), torch.randn(1, 3, 4, 4), partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-activations")
def _(run: Run) -> bool:
    net = Net(lambda self, x: nn.functional.relu6(x * 10).relu())
    return differs(run, net, X, partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-growing-batch")
def _(run: Run) -> bool:
    image, batch = torch.randn(4, 256, 2, 2), ({0: Dim("batch", min=1, max=4)},)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(256, 10))
    converted = quantized(net, image, shapes=batch).net
    program = export(converted, (image,), dynamic_shapes=batch)
    buffer = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch().buffer
    loaded = Runtime.get().load_program(buffer)
    method = loaded.load_method("forward")
    method.execute([image[:2].clone()])
    return not torch.allclose(method.execute([image])[0], converted(image), atol=0.1)


@probe("xnnpack-norms")
def _(run: Run) -> bool:
    norms = nn.Sequential(nn.LayerNorm(6), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4))
    program = to_edge_transform_and_lower(export(norms, (torch.randn(1, 4, 6),)), partitioner=[XnnpackPartitioner()])
    outside = [node.name for node in program.exported_program().graph.nodes if "norm" in node.name]
    return len(outside) == len(norms)


@probe("batch-norms-of-one-convolution")
def _(run: Run) -> bool:
    first, second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    second.running_var.fill_(9.0)
    net = Net(
        lambda self, x: first(self.conv(x)) - second(self.conv(x)),
        conv=nn.Conv2d(3, 3, 1),
        norms=nn.ModuleList([first, second]),
    )
    with torch.no_grad():
        return not torch.allclose(quantized(net, IMAGE)(IMAGE), net(IMAGE), atol=0.1)


@probe("negative-padding")
def _(run: Run) -> bool:
    return fails("execute() failed", lambda: run(Net(lambda self, x: nn.functional.pad(x, (-1, 0))), X))


@probe("functions-of-constants")
def _(run: Run) -> bool:
    net = Net(lambda self, x: x + torch.tensor(0.5).erfinv())
    return fails("erfinv", lambda: run(net, X))


def outside(net: nn.Module, x: torch.Tensor) -> str:
    """The names of what XNNPACK leaves to other kernels."""
    graph = lower(net, x, partitioners=(XnnpackPartitioner(),)).exported_program().graph
    return " ".join(node.name for node in graph.nodes if node.op == "call_function")


@probe("constant-parts")
def _(run: Run) -> bool:
    del run
    return "arange" in outside(Net(lambda self, x: x + torch.arange(4) * 0.5), X)


@probe("idle-operators")
def _(run: Run) -> bool:
    del run
    return "expand" in outside(Net(lambda self, x: x.sin().expand(2, 4) * 2), X)


@probe("softmax-guards")
def _(run: Run) -> bool:
    del run
    net = Net(lambda self, x: nn.functional.scaled_dot_product_attention(x, x * 2, x))
    return "where" in outside(net, torch.ones(1, 2, 4, 4))


@probe("views-of-weights")
def _(run: Run) -> bool:
    del run
    kernel = nn.Parameter(torch.ones(2, 3, 1, 3, 3))
    net = Net(lambda self, x: nn.functional.conv2d(x, self.kernel.view(2, 3, 3, 3)), kernel=kernel)
    return "convolution" in outside(net, IMAGE)


@probe("missing-decompositions")
def _(run: Run) -> bool:
    bag = {"words": torch.ones(4, 2), "tokens": torch.tensor([[0, 1], [2, 3]])}
    nets = [
        Net(lambda self, x: torch.bucketize(x, self.ends), ends=torch.tensor([0.0, 1.0])),
        Net(lambda self, x: torch.searchsorted(self.ends, x), ends=torch.tensor([0.0, 1.0])),
        Net(lambda self, x: nn.functional.adaptive_max_pool2d(x[None], 1)),
        Net(lambda self, x: nn.functional.bilinear(x, x, self.cube), cube=torch.ones(2, X.shape[-1], X.shape[-1])),
        Net(lambda self, x: x.sum() + nn.functional.embedding_bag(self.tokens, self.words), **bag),
        Net(lambda self, x: x.cumprod(0)),
        Net(lambda self, x: x.exp2()),
        Net(lambda self, x: x.round(decimals=1)),
        Net(lambda self, x: torch.var_mean(x, 0)),
        Net(lambda self, x: torch.ops.aten._is_all_true(x > 0)),
        Net(lambda self, x: x.long() << 1),
    ]
    return all(fails("is not in Core ATen opset", functools.partial(lower, net, X)) for net in nets)


@probe("kernels-outside-core-aten")
def _(run: Run) -> bool:
    del run
    nets = Net(lambda self, x: x.masked_select(x > 0)), Net(lambda self, x: x.repeat_interleave(x[:, 0].long(), 0))
    return all(fails("is not in Core ATen opset", functools.partial(lower, net, X)) for net in nets)


@probe("volumes")
def _(run: Run) -> bool:
    net = Net(lambda self, x: self.conv(x[None, None, None]), conv=nn.Conv3d(1, 1, (1, 2, 4)))
    return fails("execute() failed", lambda: run(net, X))


@probe("tanh-gelu")
def _(run: Run) -> bool:
    gelu = nn.GELU(approximate="tanh")
    return differs(run, gelu, X, partitioners=[XnnpackPartitioner()])


@probe("sizes-of-splits")
def _(run: Run) -> bool:
    halves = export(Net(lambda self, x: x.chunk(2, -1)[0]), (X,), dynamic_shapes={"inputs": ({0: Dim("n", max=8)},)})
    (x, *_) = to_edge_transform_and_lower(halves).exported_program().graph.find_nodes(op="placeholder")
    return bool(x.meta["val"].shape[0] == 2)


@probe("remainder")
def _(run: Run) -> bool:
    return differs(run, Net(lambda self, x: x % 3), X.long())


@probe("int64-division")
def _(run: Run) -> bool:
    large = torch.tensor([2**53 + 1])
    divided = Net(lambda self, x: torch.div(x, 1, rounding_mode="trunc"))
    return bool(run(Net(lambda self, x: torch.fmod(x, 2)), large) != 1) and bool(run(divided, large) != large)


@probe("norms")
def _(run: Run) -> bool:
    x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0)) + 1000
    return all(differs(run, norm, x) for norm in (nn.LayerNorm(16), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4)))


@probe("norms-of-float16")
def _(run: Run) -> bool:
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    norm, half = nn.LayerNorm(256), nn.LayerNorm(256).half()
    return bool((run(half, x.half()).float() - norm(x)).abs().max() > 0.1)


@probe("complex")
def _(run: Run) -> bool:
    spectrum = lambda self, x: torch.view_as_real(torch.fft.rfft(x) * torch.fft.rfft(x))  # noqa: E731
    return fails("mismatched dtypes", lambda: run(Net(spectrum), X))


@probe("complex-operators")
def _(run: Run) -> bool:
    del run
    number = ComplexTensor(torch.ones(2, 4), torch.ones(2, 4))
    return fails("Multiple dispatch failed", lambda: torch.unfold_copy(number, 1, 2, 1))


@probe("fourier")
def _(run: Run) -> bool:
    transform = lambda self, x: torch.view_as_real(torch.fft.fft(torch.view_as_complex(x)))  # noqa: E731
    return fails("aten._fft_c2c", lambda: run(Net(transform), torch.ones(4, 2)))


@probe("spectra")
def _(run: Run) -> bool:
    del run
    inverse = lambda self, x: torch.istft(torch.complex(x, x), 8, window=self.window)  # noqa: E731
    program = export(Net(inverse, window=torch.ones(8)), (torch.ones(5, 9),)).run_decompositions()
    return "aten.index_put" in str(program.graph)


@probe("float8")
def _(run: Run) -> bool:
    module = Net(lambda self, x: x * self.scale.float(), scale=torch.ones(4).to(torch.float8_e5m2))
    return fails("mismatched dtypes", lambda: run(module, X))


@probe("while-loop")
def _(run: Run) -> bool:
    def loop(self: nn.Module, x: torch.Tensor) -> Any:
        start = torch.zeros((), dtype=torch.int64)
        return torch.while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x.sin()), (start, x))[1]

    return fails("Unsupported control flow operator: while_loop", lambda: run(Net(loop), X))


@probe("written-parameters")
def _(run: Run) -> bool:
    module = Net(lambda self, x: self.state.copy_(x) + 1, state=nn.Parameter(torch.zeros(2, 4), requires_grad=False))
    return fails("does not point to a parameter that exists", lambda: run(module, X))


@probe("strings")
def _(run: Run) -> bool:
    return fails("not yet supported in the emitter", lambda: run(Net(lambda self, x: (x + 1, "text")), X))


@probe("no-tensors")
def _(run: Run) -> bool:
    return fails("graph_output_allocated not set", lambda: run(Net(lambda self, x: 3), X))


@probe("shared-arenas")
def _(run: Run) -> bool:
    header = Path(next(iter(executorch.__path__))) / "include/executorch/extension/module/module.h"
    return "bool share_memory_arenas = false" in header.read_text("utf-8")


@probe("xnnpack-bfloat16")
def _(run: Run) -> bool:
    module = Net(lambda self, x: self.linear(x), linear=nn.Linear(4, 4).bfloat16())
    program = lower(module, X.bfloat16(), partitioners=(XnnpackPartitioner(),)).exported_program()
    return any("addmm" in str(node.target) for node in program.graph.nodes)


@probe("xnnpack-dimensions")
def _(run: Run) -> bool:
    module, partitioners = Net(lambda self, x: x + 1), (XnnpackPartitioner(),)
    return fails("Failed to load method", lambda: run(module, torch.ones([2] * 7), partitioners=partitioners))


@probe("xnnpack-hooks")
def _(run: Run) -> bool:
    linear, added = nn.Linear(4, 4), torch.eye(4)
    linear.register_forward_hook(lambda module, inputs, output: output + inputs[0] @ added)
    module = Net(lambda self, x: self.linear(x), linear=linear)
    return differs(run, module, X, partitioners=(XnnpackPartitioner(),))


@probe("xnnpack-given-weights")
def _(run: Run) -> bool:
    module = Net(lambda self, x: self.conv(x), conv=nn.Conv2d(3, 3, 3))
    partitioner = XnnpackPartitioner(force_non_static_weights_for_f32_linear=True)
    return fails("Failed to load method", lambda: run(module, IMAGE, partitioners=(partitioner,)))


@probe("xnnpack-weight-twice")
def _(run: Run) -> bool:
    module = Net(lambda self, x: self.linear(x) + x * (self.linear.weight[:2] * 2), linear=nn.Linear(4, 4))
    return bool(run(module, X, partitioners=(XnnpackPartitioner(),), process=True) == -signal.SIGSEGV)


@probe("embeddings")
def _(run: Run) -> bool:
    def emitted(padding: int | None) -> None:
        module = Net(lambda self, x: self.embedding(x), embedding=nn.Embedding(8, 32, padding_idx=padding))
        config = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerGroup(32))
        quantize_(module, config, lambda layer, name: isinstance(layer, nn.Embedding))
        unwrap_tensor_subclass(module)
        config = ExecutorchBackendConfig(do_quant_fusion_and_const_prop=True)
        lower(module, torch.tensor([1, 2])).to_executorch(config)

    emitted(None)
    return fails("Missing out variants: {'torchao::dequantize_affine'}", lambda: emitted(0))


EXTERNAL = ExecutorchBackendConfig(external_constants=True)


@probe("names-of-constants")
def _(run: Run) -> bool:
    def sizes(*values: float) -> list[int]:
        nets = [Net(lambda self, x: x + self.weight, weight=torch.full((4,), value)) for value in values]
        programs = {f"method{number}": export(net, (X,)) for number, net in enumerate(nets)}
        emitted = to_edge_transform_and_lower(programs).to_executorch(EXTERNAL)
        return [len(data) for data in emitted._tensor_data.values()]

    return sizes(1.0, 2.0) == sizes(1.0)


@probe("views-of-constants")
def _(run: Run) -> bool:
    edge = lower(Net(lambda self, x: x + self.weight.view(2, 4), weight=torch.ones(8)), X)
    return fails("Failed with error", lambda: edge.to_executorch(EXTERNAL))


@probe("alignment")
def _(run: Run) -> bool:
    store = NamedDataStore()
    for alignment in (6, 4):
        store.add_named_data("key", b"data", alignment=alignment)
    [entry] = store.get_named_data_store_output().pte_data.values()
    return bool(entry.alignment != 12)


@probe("derived-dimensions")
def _(run: Run) -> bool:
    shapes = {"inputs": ({0: 8 * Dim("n", max=4)},)}
    program = export(Net(lambda self, x: x * 2), (torch.ones(16),), dynamic_shapes=shapes)
    saved = io.BytesIO()
    torch.export.save(program, saved)
    saved.seek(0)
    return fails("expected sympy.Symbol", lambda: torch.export.load(saved).run_decompositions())


@probe("assigned-buffers")
def _(run: Run) -> bool:
    class Assigns(nn.Module):
        first: torch.Tensor
        second: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("nothing", None)
            self.register_buffer("first", torch.zeros(2))
            self.register_buffer("second", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.first = self.first + x
            return self.second + x

    program = export(Assigns(), (torch.ones(2),)).run_decompositions({})
    return list(program.graph_signature.buffers_to_mutate.values()) != ["first"]


@probe("traced-attributes")
def _(run: Run) -> bool:
    class Remembers(nn.Module):
        @functools.cached_property
        def value(self) -> torch.Tensor:
            return torch.ones(2) * 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.value

    module = Remembers()
    export(module, (torch.ones(2),))
    return isinstance(vars(module).get("value"), FakeTensor)


@probe("traces-of-helpers")
def _(run: Run) -> bool:
    program: ExportedProgram = export(Net(lambda self, x: x * 2), (X,))
    traces = [node.meta.get("stack_trace", "") for node in program.graph.nodes if node.op == "call_function"]
    return all("lambda" not in trace for trace in traces)


@pytest.fixture(autouse=True)
def defaults_kept() -> Iterator[None]:
    """Torch's state is that of other tests."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
@pytest.mark.filterwarnings("ignore")
def test_the_limit_is_still_there(limit: UpstreamLimit, run: Run) -> None:
    what_to_do = f"remove what `{limit.where}` does about it" if limit.where else "remove it from docs/upstream.md"
    fixed = f"upstream has fixed `{limit.name}`: {what_to_do}, and its entry in `upstream_limits.py`. {limit.what}"
    assert PROBES[limit.name](run), fixed


def test_the_table_is_whole() -> None:
    names = [limit.name for limit in LIMITS]
    assert sorted(names) == sorted(PROBES)
    assert len(set(names)) == len(names)
    for limit in LIMITS:
        assert limit.deed in DEEDS
        assert (limit.where == "") == (limit.deed == DOCUMENTED)
        assert (TOOLCHAIN / limit.file).exists()
        assert re.fullmatch(r"(executorch|torch|torchao): \S+", limit.source)
        assert limit.report == NOT_REPORTED or re.fullmatch(REPORT, limit.report)
