"""Models that compute in 16-bit floats inside, and have float32 inputs and outputs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from safetensors.torch import save

from etbuild.errors import InputError
from etbuild.plan.parts import ModuleSource
from etplugins.comparison import overflow
from etplugins.precision import methods
from etplugins.precision.parts import Keep, Precision

from .conftest import Build

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn

class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 64, 5), nn.BatchNorm2d(64), nn.Linear(64, 2)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out, self.embed = nn.LayerNorm(32), nn.Linear(32, 32), nn.Embedding(200, 32)
        self.register_buffer("freqs", 1.0 / 10000 ** (torch.arange(16) / 16), persistent=False)

    def forward(self, ids, x):
        angles = torch.outer(torch.arange(ids.shape[1]).float(), self.freqs)
        h = self.norm(self.embed(ids) + torch.cat([angles.sin(), angles.cos()], -1) + x)
        mask = torch.full((ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min).triu(1)
        return self.out(F.softmax(h @ h.transpose(-1, -2) / 32 ** 0.5 + mask, -1) @ h)

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        y, h = self.gru(x, torch.zeros(1, x.shape[0], 16))
        return self.out(y), h

class Square(nn.Module):
    def forward(self, x):
        return (x * x).mean(-1, keepdim=True).sqrt()

class Overflowing(nn.Module):
    scale = 1000

    def __init__(self):
        super().__init__()
        self.square, self.out = Square(), nn.Linear(16, 4)

    def forward(self, x):
        y = x * self.scale
        return self.out(y / (self.square(y) + 1e-4))

class Underflowing(Overflowing):
    scale = 0.0001

    def forward(self, x):
        gate = F.softmax(x * 100, -1)  # small numbers are lost in it, and nobody misses them
        return super().forward(x * gate.sum(-1, keepdim=True))

class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 8)
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(1, 16))
        self.table = torch.tensor([[1.0] * 16, [2.0] * 16])

    def encode(self, ids):
        h = self.body(self.embed(ids)).mean(1)
        self.seen.copy_(h)
        self.count.add_(1)
        return h

    def decode(self, ids, x):
        out = torch.zeros(1, 16)
        out[:, :8] = x[:, 8:]
        out += self.seen
        h = torch.where(ids.sum() > 3, out, x) * self.table[0]
        h = torch.cond(ids.sum() > 10, lambda a: a + 1, lambda a: a * 2, (h,))
        return self.head(h), self.body(h) @ self.embed.weight.T, self.count

def create(name):
    torch.manual_seed(0)
    return globals()[name]()
"""


ONE = "forward: {example_inputs: [{shape: [1, 16]}]}"


def manifest(name: str, method: str, dtype: str, more: str = "") -> str:
    return f"""\
schema: executorch-model/v1
name: net
model: {{factory: "model:create", kwargs: {{name: {name}}}, dtype: {dtype}{more}}}
defaults: {{partitioners: [xnnpack]}}
methods:
  {method}
"""


def stored(made: Any) -> int:
    """The bytes that hold weights."""
    sizes = made.json("net.report.json")["bytes"]
    return sum([*sizes["constants"], *sizes["named_data"].values()])


def test_weights_of_convolutions_are_not_smaller_and_a_note_says_so(build: Build) -> None:
    made = build(
        manifest("Conv", "forward: {example_inputs: [{shape: [1, 3, 12, 12]}]}", "{compute: float16}"), model=MODEL
    )
    assert made.code == 0, made.err
    method = made.json("net.report.json")["methods"]["forward"]
    assert [each["dtype"] for each in (*method["inputs"], *method["outputs"])] == ["float32", "float32"]
    assert re.search(r"`compute: float16` saves [\d,]+ of [\d,]+ bytes of weights", made.err)
    (ratio,) = re.findall(r"computes in float16: SQNR ([\d.]+) dB against the float model", made.err)
    assert 50 < float(ratio) < 90


DYNAMIC = """forward:
    example_inputs: [{shape: [1, 12], dtype: int64}, {shape: [1, 12, 32]}]
    dynamic_shapes: [[null, {dim: s, min: 2, max: 64}], [null, {dim: s, min: 2, max: 64}, null]]
"""


def test_a_transformer_with_float32_norms_binds_new_weights_to_its_template(build: Build) -> None:
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    templates, sizes = set(), list[int]()
    for seed in (1, 2):
        torch.manual_seed(seed)
        weights = {name: torch.randn_like(each) for name, each in scope["Layer"]().state_dict().items()}
        dtype = "{compute: float16, keep: {layers: [norm]}}"
        text = manifest("Layer", DYNAMIC, dtype, ", weights: net.safetensors")
        made = build(text, model=MODEL, files={"net.safetensors": save(weights)})
        assert made.code == 0, made.err
        templates.add(made.json("net.index.json")["template"])
        sizes.append(stored(made))
    assert len(templates) == 1
    in_float32 = build(manifest("Layer", DYNAMIC, "float32"), model=MODEL)
    assert sizes[0] < 0.6 * stored(in_float32)


@pytest.mark.parametrize("compute", ["float16", "bfloat16"])
def test_methods_share_weights_and_states(compute: str, build: Build) -> None:
    several = """encode: {example_inputs: [{shape: [1, 12], dtype: int64}]}
  decode: {example_inputs: [{shape: [1, 12], dtype: int64}, {shape: [1, 16]}]}
named_data: {shared: {parameters: ["embed.*"]}}
"""
    made = build(manifest("Several", several, f"{{compute: {compute}, keep: {{modules: [head]}}}}"), model=MODEL)
    assert made.code == 0, made.err
    assert made.json("net.report.json")["methods"]["decode"]["outputs"][-1]["dtype"] == "int64"
    assert made.err.count(f"computes in {compute}: SQNR") == 2
    assert (made.directory / "net.shared.ptd").stat().st_size < 50 * 16 * 4


def test_a_recurrent_model_has_float32_states_at_its_edges(build: Build) -> None:
    made = build(
        manifest("Recurrent", "forward: {example_inputs: [{shape: [1, 6, 8]}]}", "{compute: float16}"), model=MODEL
    )
    assert made.code == 0, made.err
    method = made.json("net.report.json")["methods"]["forward"]
    assert [each["dtype"] for each in method["outputs"]] == ["float32", "float32"]
    assert re.search("computes in float16: SQNR [0-9.]+ dB", made.err)


@pytest.mark.parametrize(("name", "kind"), [("Overflowing", "overflow"), ("Underflowing", "underflow")])
def test_what_leaves_the_range_is_an_error_with_its_line_until_its_module_is_kept(
    name: str, kind: str, build: Build
) -> None:
    made = build(manifest(name, ONE, "{compute: float16}"), model=MODEL)
    assert made.code == 1
    assert f"the first {kind} is in `aten.mul.Tensor`" in made.err
    assert "return (x * x).mean(-1, keepdim=True).sqrt()" in made.err
    assert "`keep: {modules: [square]}`" in made.err
    kept = build(manifest(name, ONE, "{compute: float16, keep: {modules: [square]}}"), model=MODEL)
    assert kept.code == 0, kept.err


def converted(module: torch.nn.Module, *inputs: torch.Tensor, keep: Keep | None = None) -> Any:
    """The method `forward` of a module in float16, without a build."""
    programs = {"forward": torch.export.export(module.eval().requires_grad_(False), inputs, strict=False)}

    class Plan:
        model = ModuleSource(precision=Precision("float16", keep=keep or Keep()))
        leaves_weights = False

    methods.convert(module, programs, Plan)  # type: ignore[arg-type]
    return programs["forward"]


def dtypes(program: torch.export.ExportedProgram, name: str) -> set[torch.dtype]:
    nodes = [node for node in program.graph.nodes if name in str(node.target)]
    assert nodes
    return {node.meta["val"].dtype for node in nodes}


class Net(torch.nn.Module):
    """A module with this `forward` and these parts."""

    def __init__(self, forward: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self._forward(self, *inputs)


def test_positions_are_exact() -> None:
    x = torch.rand(1, 5000)
    program = converted(Net(lambda self, x: x * 0 + torch.arange(x.shape[1], dtype=torch.float32).mul(1e-3).sin()), x)
    expected = torch.arange(5000).mul(1e-3).sin()
    assert (program.module()(x)[0] - expected).abs().max() < 1e-3
    assert dtypes(program, "aten.sin") == {torch.float32}
    assert dtypes(program, "aten.add") == {torch.float16}


def test_operators_that_write_to_an_operand_write_to_the_same_memory() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(2, 4)
        made[:, 1:3] = self.one(x)
        return made.add_(1)

    x, module = torch.rand(2, 4), Net(forward, one=torch.nn.Linear(4, 2))
    expected = module(x)
    assert (converted(module, x).module()(x) - expected).abs().max() < 1e-2
    assert module.one.weight.dtype == torch.float16


def test_a_weight_stays_float32_if_a_kept_part_reads_it_too() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x))

    module = Tied()
    program = converted(module, torch.rand(1, 4), keep=Keep(("two",)))
    assert module.two.weight.dtype == torch.float32
    assert module.one.bias.dtype == torch.float16
    assert program.module()(torch.rand(1, 4)).dtype == torch.float32


def test_sizes_that_depend_on_values_stay() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.one(x)[x[:, 0] > 0.5].sum(0)

    x = torch.rand(8, 4)
    module = Net(forward, one=torch.nn.Linear(4, 4))
    expected = module(x)
    assert (converted(module, x).module()(x) - expected).abs().max() < 2e-2


def test_a_mask_of_the_smallest_number_stays_finite() -> None:
    def forward(self: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + (1.0 - mask.float()) * torch.finfo(torch.float32).min

    x, mask = torch.rand(1, 4), torch.tensor([[1, 1, 0, 0]])
    program = converted(Net(forward), x, mask)
    assert program.module()(x, mask).isfinite().all()
    assert overflow.first(program, {}, [x, mask]) is None


def test_a_word_that_no_operator_has_is_an_error() -> None:
    with pytest.raises(InputError) as caught:
        converted(
            Net(lambda self, x: self.one(x), one=torch.nn.Linear(4, 4)),
            torch.rand(1, 4),
            keep=Keep(("onee",), ("norm",)),
        )
    assert [problem.message for problem in caught.value.problems] == [
        "no operator belongs to `onee`",
        "no operator belongs to `norm`",
    ]
    assert str(caught.value.problems[0].hint).startswith("did you mean `one`?")


def test_an_operator_with_a_number_that_16_bits_cannot_hold_is_right() -> None:
    x = torch.zeros(1, 4)
    x[0, 0] = 0.5

    def check(forward: Any, *others: torch.Tensor, **buffers: torch.Tensor) -> Any:
        module = Net(forward)
        for name, value in buffers.items():
            module.register_buffer(name, value)
        expected, program = module(x, *others), converted(module, x, *others)
        torch.testing.assert_close(program.module()(x, *others), expected, rtol=2e-3, atol=1e-6)
        return program

    check(lambda self, x: x * 1e-9 * 1e9)
    check(lambda self, x: x / 1000000 * 100000)
    check(lambda self, x: x / (x.abs() + 1e-12))
    check(lambda self, x: x / (x.abs() + torch.full((1,), 1e-12)))
    check(lambda self, x: x / (x.abs() + self.eps), eps=torch.tensor(1e-12))
    check(lambda self, x: x * self.large / 1e6, large=torch.tensor(1e6))
    filled = check(
        lambda self, x, m: (x * 2).masked_fill(m, -1000000).softmax(-1), torch.tensor([[True] * 2 + [False] * 2])
    )
    assert dtypes(filled, "masked_fill") == {torch.float16}


def test_a_mask_that_a_kernel_reads_as_float32_stays_float32() -> None:
    from executorch.extension.llm.custom_ops import custom_ops

    assert custom_ops

    def forward(self: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)
        return torch.ops.llama.custom_sdpa(q, k, v, 0, mask, 0.0, False)

    inputs = [*torch.rand(3, 1, 3, 2, 4).unbind()]
    module = Net(forward)
    program = converted(module, *inputs)
    assert dtypes(program, "custom_sdpa") == {torch.float16}
    (attention,) = (each for each in program.graph.nodes if "custom_sdpa" in str(each.target))
    assert attention.args[4].meta["val"].dtype == torch.float32
    torch.testing.assert_close(program.module()(*inputs), module(*inputs), rtol=1e-2, atol=1e-2)


def test_an_operator_that_cannot_be_tried_on_zeros_stays_float32() -> None:
    x = torch.eye(4) + torch.rand(4, 4) / 10
    module = Net(lambda self, x: torch.linalg.inv(x))
    program = converted(module, x)
    assert dtypes(program, "linalg_inv") == {torch.float32}
    torch.testing.assert_close(program.module()(x), module(x), rtol=1e-2, atol=1e-2)


def test_layers_are_the_innermost_module_or_the_operator() -> None:
    class NormalNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.one(x))

    program = converted(NormalNet(), torch.rand(1, 4), keep=Keep((), ("norm",)))
    assert dtypes(program, "aten.linear") == {torch.float16}
    assert dtypes(program, "layer_norm") == {torch.float32}
    for word in ("_", "default", "aten", "normal"):
        with pytest.raises(InputError, match=f"no operator belongs to `{word}`"):
            converted(NormalNet(), torch.rand(1, 4), keep=Keep((), (word,)))


def test_a_method_from_a_file_is_refused(build: Build) -> None:
    methods = f"{ONE}\n  other: {{program: other.pt2}}"
    made = build(manifest("Overflowing", methods, "{compute: float16}"), model=MODEL, files={"other.pt2": b""})
    assert made.code != 0
    assert "`program` of the method `other` does not go with `compute`" in made.err


PASSES = """\
def edge(method, program):
    from torch.fx.passes.infra.pass_base import PassResult

    def remove(module):
        (relu,) = [node for node in module.graph.nodes if "relu" in str(node.target)]
        relu.replace_all_uses_with(relu.args[0])
        module.graph.erase_node(relu)
        module.recompile()
        return PassResult(module, True)

    return [remove]
"""


@pytest.mark.parametrize("scale", [1, 20])
def test_a_wrong_lowering_is_an_error_also_where_a_part_overflows(scale: int, build: Build) -> None:
    model = f"""\
import torch

class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.out(torch.relu(x)) + 1 / (1 + torch.exp(-{scale} * x))

def create(name):
    return Gate()
"""
    text = manifest("Gate", "forward: {example_inputs: [{shape: [64, 16]}]}", "{compute: float16}")
    made = build(
        text.replace("defaults: {partitioners: [xnnpack]}", 'passes: {edge: ["wrong:edge"]}'),
        model=model,
        files={"wrong.py": PASSES.encode()},
    )
    assert made.code == 1
    assert "the program computes something else than the exported method" in made.err
