"""Exported methods compute the same as direct calls, for all kinds of methods of a module."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import random
import types
from operator import attrgetter
from typing import Any

import numpy
import pytest
import torch
from executorch.runtime import Runtime
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from etbuild import plugins
from etbuild.errors import BuildError, InputError
from etbuild.export import assignments
from etbuild.export.assignments import EagerMethod
from etplugins.assignments.assigned import Assigned, assigned_when_run, calls_differ, other_inputs, watched
from tests.helpers.rotation import values_that_run

from .conftest import Build, Outcome

MODEL = """\
import functools
import torch

class Base(torch.nn.Module):
    def forward(self, x):
        return x * 3

class Tail(torch.nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.linear = shared

    def forward(self, x):
        return self.linear(x).tanh()

    def cut(self, x):
        return self(x)[:1]

def logged(function):
    @functools.wraps(function)
    def wrapper(self, *inputs, **keywords):
        return function(self, *inputs, **keywords)
    return wrapper

def scaled(by, x):
    return x * by

class Shifted:
    def __call__(self, x):
        return x + 5

class Net(Base):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.tied = torch.nn.Linear(4, 4)
        self.tied.weight = self.linear.weight
        self.tail = Tail(self.linear)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.tripled = functools.partial(scaled, 3)
        self.shifted = Shifted()

    def forward(self, x):
        return super().forward(self.linear(x)) + self.constant + self.scratch

    def by_call(self, x):
        return self(x).softmax(-1)

    def by_forward(self, x):
        return self.forward(x).softmax(-1)

    def by_super(self, x):
        return super().forward(x) + self.tied(x)

    def by_class(self, x):
        return Net.forward(self, x) - Base.forward(self, x)

    def by_entries(self, x):
        return self.by_call(x) + self.by_super(x)

    def twice(self, x):
        return self(self(x))

    def by_child(self, x):
        return self.tail.cut(x) + self.tail(x)

    def by_type(self, x):
        return self(x.float() / 255) if x.dtype == torch.uint8 else x

    def counting(self, x):
        self.count.add_(1)
        return self(x) * self.count

    def assigning(self, x):
        self.count = self.count + 1
        return self(x) * self.count

    def branching(self, x):
        self.count += 1
        return torch.cond(x.sum() > 0, lambda x: self(x) * self.count, lambda x: x.sin(), (x,))

    def through_branching(self, x):
        return self.branching(x) + 1

    @logged
    def decorated(self, x):
        return self(x) + 1

    @torch.no_grad()
    def without_gradients(self, x):
        return self(x) + 2

    @classmethod
    def of_class(cls, x):
        return x * (3 if cls is Net else 4)

    as_partial = functools.partialmethod(by_call)

    def of_kind(self, x):
        return self(x) if type(self) is Net and isinstance(self.tail, Tail) else x

    def recursive(self, x, depth=2):
        return self.recursive(self(x), depth - 1) if depth else x

def create():
    torch.manual_seed(0)
    return Net()
"""

ENTRIES = (
    *("forward", "by_call", "by_forward", "by_super", "by_class", "by_entries", "twice", "by_child", "by_type"),
    *("counting", "assigning", "decorated", "without_gradients", "of_class", "as_partial", "of_kind", "recursive"),
    *("tail", "tail.cut", "tripled", "shifted", "branching", "through_branching"),
)
STRICT = ("by_call", "by_forward", "by_super", "twice", "counting", "branching", "decorated", "tail.cut")
HEAD = """\
schema: executorch-model/v1
name: net
model: {factory: "model:create"}
defaults: {partitioners: []}
methods:
"""


def name_of(entry: str, strict: bool) -> str:
    return entry.replace(".", "_") + ("_strict" if strict else "")


EXPORTED = {
    name_of(entry, strict): (entry, strict) for strict in (False, True) for entry in (STRICT if strict else ENTRIES)
}
"""Each entry by the name of its method, and whether its export is strict."""


def method(entry: str, strict: bool) -> str:
    dtype = "uint8" if entry == "by_type" else "float32"
    inputs = f"[{{shape: [2, 4], dtype: {dtype}}}]"
    return f"  {name_of(entry, strict)}: {{entry: {entry}, strict: {str(strict).lower()}, example_inputs: {inputs}}}\n"


def eager(built: Outcome) -> Any:
    spec = importlib.util.spec_from_file_location("eager_model", built.directory.parent / "model.py")
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    module = source.create()
    with contextlib.suppress(NotImplementedError):  # exported modules cannot be switched to another mode
        module.eval()
    return module


def check(built: Outcome, name: str, entry: str, *inputs: Any, calls: int = 2) -> None:
    """Compares several calls of a method with those of the module, whose state may change."""
    assert built.code == 0, built.err
    module = eager(built)
    called = module if entry == "forward" else attrgetter(entry)(module)
    loaded = Runtime.get().load_program(built.directory / "net.pte").load_method(name)
    assert loaded is not None
    with torch.no_grad():
        for _ in range(calls):
            expected = pytree.tree_leaves(called(*copy.deepcopy(inputs)))  # a method may write to them
            torch.testing.assert_close(list(loaded.execute(inputs)), expected)


@pytest.fixture(scope="module")
def kept() -> dict[str, Outcome]:
    return {}


@pytest.fixture
def built(request: pytest.FixtureRequest, build: Build, kept: dict[str, Outcome]) -> Outcome:
    """One program with the entries of this run, since a program for each would need its own build."""
    if not kept:
        chosen = values_that_run(request, "exported")
        methods = [method(entry, strict) for name, (entry, strict) in EXPORTED.items() if name in chosen]
        kept["net"] = build(HEAD + "".join(methods), model=MODEL)
    return kept["net"]


@pytest.mark.parametrize("exported", EXPORTED)
def test_an_entry_computes_what_calling_it_computes(exported: str, built: Outcome) -> None:
    torch.manual_seed(1)
    entry, _ = EXPORTED[exported]
    x = (torch.rand(2, 4) * 255).to(torch.uint8) if entry == "by_type" else torch.randn(2, 4)
    check(built, exported, entry, x)


FACTORIES = {
    "hooks": "net.register_forward_hook(lambda module, inputs, output: output + 10)\n"
    "    net.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))\n"
    "    net.tail.register_forward_hook(lambda module, inputs, output: output - 1)",
    "forward_of_the_instance": "before = net.forward\n    net.forward = lambda x: before(x) * 7",
    "call": "net.__class__ = type('Called', (Net,), {'__call__': lambda self, x: Net.__call__(self, x) * 9})",
    "attributes": "net.__class__ = type('Open', (Net,), {'__getattr__': lambda self, name:"
    " getattr(self.tail, name) if name == 'absent' else Net.__getattr__(self, name)})",
    "shared_child": "net.again = net.tail",
}


@pytest.mark.parametrize("how", FACTORIES)
def test_an_entry_calls_the_module_as_its_factory_left_it(how: str, build: Build) -> None:
    model = MODEL.replace("    return Net()", f"    net = Net()\n    {FACTORIES[how]}\n    return net")
    built = build(HEAD + method("by_call", False) + method("by_child", False) + method("by_forward", True), model=model)
    x = torch.randn(2, 4)
    for entry, strict in (("by_call", False), ("by_child", False), ("by_forward", True)):
        check(built, name_of(entry, strict), entry, x)


def test_weights_and_modules_keep_their_names(build: Build) -> None:
    """Strict exports name modules by their address unless the driver renames them."""
    manifest = HEAD + method("by_call", True) + method("by_call", False)
    exports = []
    for hidden in ("", "hidden = [bytearray(99) for _ in range(999)]\n"):  # changes the addresses of later objects
        made = build(manifest, "--stop-after", "export", model=hidden + MODEL)
        assert made.code == 0, made.err
        program = torch.export.load(next(made.directory.rglob("by_call_strict.pt2")))
        assert {"linear.weight", "linear.bias"} <= set(program.state_dict)
        assert [node.name for node in program.graph.nodes][:2] == ["p_linear_weight", "p_linear_bias"]
        exports.append([str(node.meta.get("nn_module_stack")) for node in program.graph.nodes])
    assert exports[0] == exports[1]


LOSING = {
    "of_a_child": (
        "self.tail.state = self.tail.state + x.sum()\n        return self(x) * self.tail.state",
        "tail.state",
    ),
    "constant": ("self.constant = self.constant + 1\n        return self(x)", "constant"),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("what", LOSING)
def test_assignments_that_would_be_lost_are_refused(what: str, strict: bool, build: Build) -> None:
    body, named = LOSING[what]
    model = MODEL.replace("    def by_call", f"    def lose(self, x):\n        {body}\n\n    def by_call")
    model = model.replace("self.linear = shared", "self.linear = shared; self.register_buffer('state', torch.ones(1))")
    made = build(HEAD + method("lose", strict), model=model)
    assert made.code == 1
    assert f"the method reads `{named}` and assigns to it, but torch.export loses the assignment" in made.err
    assert made.files == []


def test_assignments_that_strict_export_would_lose_are_refused(build: Build) -> None:
    made = build(HEAD + method("assigning", True), model=MODEL)
    assert made.code == 1
    assert "the method reads `count` and assigns to it, but torch.export loses the assignment" in made.err


def test_what_nothing_reads_may_be_assigned(build: Build) -> None:
    body = "self.seen = x; self.tail.state = x.sum(); self.count += 1; return self(x).softmax(-1) + self.tail.state"
    model = MODEL.replace("return self(x).softmax(-1)", body, 1)
    model = model.replace("self.linear = shared", "self.linear = shared; self.register_buffer('state', torch.ones(1))")
    made = build(HEAD + method("by_call", False) + method("by_call", True), model=model)
    notes = made.json("net.report.json")["notes"]
    assert {"seen", "tail.state"} <= {note.split("`")[3] for note in notes if note.startswith("`by_call` assigns to")}
    for strict in (False, True):
        check(made, name_of("by_call", strict), "by_call", torch.randn(2, 4))


REMEMBERED = {
    "none at first": "last, self.last = self.last, x; return x if last is None else x + last",
    "a number": "self.calls += 1; return x * self.calls",
    "in a list": "self.window.append(x); return sum(self.window)",
}


@pytest.mark.parametrize("what", REMEMBERED)
def test_what_a_second_call_gives_is_compared(what: str, build: Build) -> None:
    model = f"""
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.calls, self.window = None, 0, []
        self.scaled = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    def forward(self, x):
        x = self.scaled(x)
        {REMEMBERED[what]}
def create():
    return Net()
"""
    made = build(HEAD + method("forward", False), model=model)
    assert (made.code, made.files) == (1, [])
    assert "a second call gives something else than in PyTorch" in made.err
    assert f"    it is assigned at model.py:10: `{REMEMBERED[what]}`\n" in made.err


CASTS = {
    "to": "self.idx = self.idx.to(x); return x + self.idx",
    "half": "self.idx = self.idx.half(); return x + self.idx",
    "of_a_child": "self.tail.idx = self.tail.idx.type_as(x); return x + self.tail.idx",
}


def test_a_cast_that_is_assigned_is_the_same_at_each_call(build: Build) -> None:
    bodies = "".join(f"    def cast_{what}(self, x):\n        {body}\n\n" for what, body in CASTS.items())
    child = "self.register_buffer('idx', torch.arange(4))"
    model = MODEL.replace("    def by_call", f"{bodies}    def by_call").replace(
        "self.linear = shared", f"self.linear = shared; {child}"
    )
    model = model.replace("    return Net()", "    net = Net()\n    net.idx = torch.arange(4)\n    return net")
    methods = [(f"cast_{what}", strict) for what in CASTS for strict in (False, True)]
    made = build(HEAD + "".join(method(*each) for each in methods), model=model)
    for entry, strict in methods:
        check(made, name_of(entry, strict), entry, torch.randn(2, 4))


@pytest.mark.parametrize("more", ["+ x.sum().long() * 0 + 1", "+ x"])
def test_a_cast_of_something_else_is_refused(more: str, build: Build) -> None:
    body = f"self.idx = (self.idx {more}).float(); return x + self.idx"
    model = MODEL.replace("    def by_call", f"    def lose(self, x):\n        {body}\n\n    def by_call")
    model = model.replace("    return Net()", "    net = Net()\n    net.idx = torch.arange(4)\n    return net")
    made = build(HEAD + method("lose", False), model=model)
    assert made.code == 1
    assert "the method reads `idx` and assigns to it" in made.err
    assert "register it as a buffer, and write to it" in made.err


def test_a_run_that_looks_for_assignments_leaves_no_trace() -> None:
    class Drawing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))
            self.constant = torch.zeros(4)
            self.register_buffer("state", torch.zeros(4))

        def forward(self) -> None:
            self.weight[1:].mul_(2)
            self.constant += 1
            self.state.add_(1)
            random.random(), numpy.random.rand(), torch.rand(1)

    def states() -> str:
        return str((random.getstate(), numpy.random.get_state(), torch.get_rng_state().tolist()))

    module, before = Drawing(), states()
    weight = module.weight
    assigned_when_run(module, module)
    assert states() == before
    assert module.weight is weight
    assert weight.tolist() == [1.0] * 4
    assert module.constant.tolist() == module.state.tolist() == [0.0] * 4


GRAPHS = {
    "exported": "return torch.export.export(Net().eval(), (torch.ones(2, 4),)).module()",
    "traced": "return torch.fx.symbolic_trace(Net().tail)",
    "child": "net = Net()\n    net.tail = torch.export.export(net.tail, (torch.ones(2, 4),)).module()\n    return net",
    "quantized": """\
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    exported = torch.export.export(Net().tail.eval(), (torch.ones(2, 4),)).module()
    prepared = prepare_pt2e(exported, XNNPACKQuantizer().set_global(get_symmetric_quantization_config()))
    prepared(torch.randn(2, 4))
    return convert_pt2e(prepared)""",
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_graph_module_is_a_model(kind: str, build: Build) -> None:
    model = MODEL.replace("return Net()", GRAPHS[kind])
    built = build(HEAD + method("forward", False), model=model)
    check(built, "forward", "forward", torch.randn(2, 4))


OWN_BUFFERS = """\
import functools
import torch

TABLES = {}

@functools.lru_cache(maxsize=8)
def ramp(size):
    return torch.full((size,), 3.0).cumsum(0)

def table(size, made={}):
    if size not in made:
        made[size] = TABLES[size] = torch.arange(size).float()
    return made[size] + TABLES[size]

class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", None, persistent=False)

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.full((4,), 3.0)
        return x * self.mask

class Rotation:
    __slots__ = ("ready", "angles")

    def __init__(self):
        self.ready = False

    def get(self):
        if not self.ready:
            self.angles, self.ready = torch.arange(4.0), True
        return self.angles

class Net(torch.nn.Module):
    shared = None

    def __init__(self):
        super().__init__()
        self.register_buffer("none", None)
        self.register_buffer("mask", None, persistent=False)
        for name in ("first", "second", "third"):
            self.register_buffer(name, torch.ones(4))
        self.register_buffer("empty", torch.empty(0), persistent=False)
        self.register_buffer("rows", torch.ones(2, 4))
        self.linear = torch.nn.Linear(4, 4)
        self.linear.register_buffer("of_child", torch.ones(4))
        self.lazy, self.rotation, self.tables = Lazy(), Rotation(), {}

    @functools.cached_property
    def scale(self):
        return self.linear.weight.sum(0) + torch.arange(4.0)

    def made(self, x):
        if not hasattr(self, "made_here"):
            self.made_here = torch.arange(4.0)
            self.register_buffer("registered", torch.arange(4.0) + 1, persistent=False)
        if self.mask is None:
            self.register_buffer("mask", torch.full((4,), 2.0), persistent=False)
        if len(self.empty) < 4:
            self.empty = torch.full((4,), 5.0)
        if Net.shared is None:
            Net.shared = torch.ones(4)
        if "x" not in self.tables:
            self.tables["x"] = torch.ones(4)
        y = self.lazy(x) * self.scale + self.made_here + self.registered + self.mask + self.empty + Net.shared
        return y + self.tables["x"] + self.rotation.get() + ramp(4) + table(4)

    def forward(self, x):
        return self.made(self.linear(x))

    def again(self, x):
        self.second = self.second + x[0]
        self.linear.of_child.add_(1)
        return self.made(x) + self.second + self.linear.of_child

    def swapped(self, x):
        self.first, self.third = self.third * 2, self.first
        return self.first + self.third * x

    def delayed(self, x):
        old = self.first
        self.first = self.first + x[0]
        self.second = old[:4]
        return self.first * 2 + self.second

    def returned(self, x):
        old, part = self.first, self.second[1:]
        self.first = self.first + x[0]
        self.second = self.second * 2
        return old, old[:2], part, self.first, x

    def writing(self, x):
        rows = x.view(-1)
        rows[1:].add_(1)
        self.first.add_(x[0])
        return x, rows[:2], self.linear(x), self.first

    def kept(self, x):
        difference = x - self.rows
        self.rows = x
        return difference

    def removed(self, x):
        old = self.first
        del self.first
        self.register_buffer("first", old + x[0])
        self.third = self.third * 2
        return self.first + self.second + self.third

def create():
    torch.manual_seed(0)
    return Net()
"""


def test_what_a_method_assigns_reaches_its_own_buffers_and_no_other_method(build: Build) -> None:
    entries = ("forward", "again", "swapped", "delayed", "returned", "writing", "kept", "removed", "lazy")
    built = build(HEAD + "".join(method(entry, False) for entry in entries), model=OWN_BUFFERS)
    for entry in entries:
        check(built, entry, entry, torch.randn(2, 4), calls=3)
    assert built.err.count("note: `writing` writes to its input `x`") == built.err.count("writes to its input") == 1


SHARED_BUFFERS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("own", torch.zeros(4))
        self.child = torch.nn.Module()
        self.child.register_buffer("own", self.own)

    def forward(self, x):
        self.own = self.own + x[0]
        return x + self.child.own

    def itself(self, x):
        self.own = self.own + x[0]
        return x + self.own

def create():
    return Net()
"""


def test_a_buffer_with_two_names_gets_a_value_under_one_of_them_only(build: Build) -> None:
    refused = build(HEAD + method("forward", False), model=SHARED_BUFFERS)
    assert refused.code == 1
    assert "a second call gives something else than in PyTorch" in refused.err
    assert "assigns to `own`" in refused.err
    built = build(HEAD + method("itself", False), model=SHARED_BUFFERS)
    check(built, "itself", "itself", torch.randn(2, 4), calls=3)


LOST = {
    "c.h": "self.c.h = self.c.h + x; return self.c.h * 1",
    "of_slots[0].h": "self.of_slots[0].h = self.of_slots[0].h + x; return self.of_slots[0].h * 1",
    "states['h']": "self.states['h'] = self.states['h'] + x; return self.states['h'] * 1",
    "pair[0]": "self.pair = (self.pair[0] + x, self.pair[1]); return self.pair[0] * 1",
    "window[1]": "self.window.pop(0); self.window.append(x); return torch.stack(self.window).sum(0)",
    "code.STATE[0]": "STATE[0] = STATE[0] + x; return STATE[0] * 1",
    "code.Net.h": "Net.h = Net.h + x; return Net.h * 1",
    "step.h": "return self.step(x)",
    "n": "self._buffers['n'] = self.n + x; return self.n * 1",
    "i": "self.__dict__['i'] = self.i + x; return self.i * 1",
    "hidden[0].k": "self.hidden[0].k = self.hidden[0].k + x; return self.hidden[0].k * 1",
    "m": "self.m.data = self.m + x; return self.m * 1",
    "child.weight": "self.child.weight.data = self.child.weight + x; return self.child.weight * 1",
}
REFUSED = {
    "assigns a tensor of shape (4, 4) to the buffer `n`": "self.n = torch.cat([self.n, x]); return self.n.sum(0)",
    "assigns a tensor of shape (6, 4) to the buffer `n`": (
        "self._buffers['n'] = torch.cat([self.n, x, x]); return self.n.sum(0)"
    ),
    "assigns a tensor of shape (3, 4) to the buffer `n`": (
        "self.__dict__['n'] = self.n[:1] + x.new_ones(3, 4); return self.n"
    ),
    "assigns a tensor of shape (4, 4) to the buffer `norm.running_mean`": (
        "self.norm.running_mean = self.norm.running_mean + x.new_ones(4, 4); return self.norm.running_mean.sum(0)"
    ),
    "assigns torch.float32 to the buffer `i`, which is torch.int64": "self.i = self.i + x; return self.i * 1",
    "makes the parameter `w`": "self.w = torch.nn.Parameter(torch.ones(4)); return self.w * x",
    "makes the parameter `l.weight`": "self.l = torch.nn.Linear(4, 4); return self.l(x)",
}
STATES = """
import torch
STATE = [torch.zeros(2, 4)]

class Cache:
    def __init__(self):
        self.h = torch.zeros(2, 4)

class Slots(Cache):
    __slots__ = ("h",)

def stepping():
    h = torch.zeros(2, 4)
    def step(x):
        nonlocal h
        h = h + x
        return h * 1
    return step

class Net(torch.nn.Module):
    h = torch.zeros(2, 4)

    def __init__(self):
        super().__init__()
        self.c, self.of_slots, self.step, self.states = Cache(), [Slots()], stepping(), {"h": torch.zeros(2, 4)}
        self.pair, self.window = (torch.zeros(2, 4), 1), [torch.zeros(2, 4), torch.ones(2, 4)]
        self.register_buffer("n", torch.zeros(2, 4))
        self.register_buffer("m", torch.zeros(2, 4))
        self.child, self.norm = torch.nn.Embedding(2, 4), torch.nn.BatchNorm1d(4)
        self.hidden = [torch.nn.Module()]
        self.hidden[0].register_buffer("k", torch.zeros(2, 4))
        self.register_buffer("i", torch.zeros(2, 4, dtype=torch.int64))

    def forward(self, x):
        BODY
"""


def traced(body: str) -> tuple[torch.nn.Module, types.ModuleType, ExportedProgram, Assigned]:
    """Exports a method with this body: its module, its code, the program, and what it assigns."""
    code = types.ModuleType("code")
    exec(compile(STATES.replace("BODY", body), "code.py", "exec"), vars(code))
    module = code.Net().eval().requires_grad_(False)
    before = {**vars(module), **vars(code)}
    with torch.no_grad(), watched(module, [code]) as assigned:
        program = torch.export.export(module, (torch.ones(2, 4),))
    assert before == {**vars(module), **vars(code)}
    return module, code, program, assigned


def assigned_in(body: str) -> str:
    """Exports a method with this body, and returns the message about its assignments."""
    _, _, program, assigned = traced(body)
    with pytest.raises(BuildError) as caught:
        assigned.check(program, ("methods", "forward", "entry"))
    return str(caught.value)


@pytest.mark.parametrize("name", LOST)
def test_state_that_is_not_in_a_buffer_is_refused(name: str) -> None:
    said = assigned_in(LOST[name])
    assert f"the method reads `{name}` and assigns to it, but torch.export loses the assignment" in said


@pytest.mark.parametrize(
    "body",
    [
        "self.__dict__['n'] = self.n + x; return self.n * 1",
        "self._buffers['n'] = self.n + x; return self.n * 1",
        "self.n = self.n + x; self.__dict__['n'] = self.n; return self.n * 1",
        "self.__dict__['n'] = self.n + x; self.n = self.n + x; return self.n * 1",
    ],
)
def test_a_buffer_that_is_assigned_past_the_module_is_called_a_buffer(body: str) -> None:
    assert "\n    write to the buffer instead: `n.copy_(...)`" in assigned_in(body)


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_program_can_keep_is_refused(message: str) -> None:
    assert message in assigned_in(REFUSED[message])


OF_RUNS = {
    "w": "self.w = x; return x * 1",
    "n": "self.n = self.n + x; return self.n * 1",
    "list": "self.window.append(x); return sum(self.window)",
    "COUNT": "global COUNT; COUNT = 1; return x * 1",
    "child.weight": LOST["child.weight"],
}
"""What a method assigns, by what a build without a plug-in calls it."""


@pytest.mark.parametrize("name", OF_RUNS)
def test_without_the_plug_in_a_method_that_assigns_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match=f"the method assigns to `{name}` when it runs, which needs the plug-in"):
        traced_without_plugins(OF_RUNS[name], monkeypatch)


@pytest.mark.parametrize("body", ["self.n.add_(x); return self.n * 2", "return self.norm(x)"])
def test_a_method_that_assigns_nothing_needs_no_plug_in(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, program = traced_without_plugins(body, monkeypatch)
    assert (
        assignments.differing_sizes(eager, program, [(torch.export.Dim("n", min=2), torch.export.Dim.STATIC)]) is None
    )
    with pytest.raises(InputError, match="no plug-in provides the method watch `assignments`"):
        assignments.differing_sizes(eager, program, [(torch.export.Dim("n", min=1),)])


def traced_without_plugins(body: str, monkeypatch: pytest.MonkeyPatch) -> tuple[EagerMethod, ExportedProgram]:
    """Exports a method with this body in a driver without plug-ins."""
    code = types.ModuleType("code")
    exec(compile(STATES.replace("BODY", body), "code.py", "exec"), vars(code))
    monkeypatch.setattr(plugins, "group", lambda name: {})
    monkeypatch.setattr(assignments, "active_finder", lambda: types.SimpleNamespace(loaded_modules=lambda: [code]))
    module, inputs = code.Net().eval().requires_grad_(False), (torch.ones(2, 4),)
    eager = EagerMethod(module, module, (inputs, {}), "forward", ("methods", "forward", "entry"), is_only=True)
    return eager, assignments.traced(eager, lambda: torch.export.export(module, inputs))


NO_STATE = "mem = torch.zeros_like(self.norm.running_mean); self.norm.running_mean = mem * 2 + x[0]; return mem + x"
RESHAPED = """\
mem = torch.zeros_like(self.norm.running_mean)
        if mem.shape != x.shape:
            mem = torch.zeros_like(x)
        self.norm.running_mean = 0.9 * mem + x
        return mem + x
"""
SIZES = "size = self.norm.running_mean.shape[0]; self.norm.running_mean = x.new_ones(size + 1); return x + size"


@pytest.mark.parametrize(("body", "differs"), [(NO_STATE, False), (RESHAPED, False), (SIZES, True)])
def test_a_buffer_may_be_assigned_if_only_its_form_is_read(body: str, differs: bool) -> None:
    """If its new form changes what a second call gives, two calls show it."""
    module, code, program, assigned = traced(body)
    assigned.check(program, ("methods", "forward", "entry"))
    assert calls_differ(module, module, program, ((torch.ones(2, 4),), {}), [code]) == differs


def test_inputs_that_pytorch_cannot_add_to_are_copied() -> None:
    for dtype in (torch.float8_e4m3fn, torch.float32, torch.int8):
        value = torch.zeros(2).to(dtype)
        copied = other_inputs(value)
        assert copied.dtype == dtype
        assert copied.data_ptr() != value.data_ptr()


HOOKED = """\
import torch
import torch.nn.functional as F
from torch.nn.utils import spectral_norm, weight_norm

def pre(module, inputs):
    module.bias = module.raw * 3

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = weight_norm(torch.nn.Linear(4, 4)), spectral_norm(torch.nn.Linear(4, 4, bias=False))
        self.c, self.d = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.c.raw = self.c.bias
        del self.c.bias
        self.c.bias = self.c.raw.data * 3
        self.c.register_forward_pre_hook(pre)
        self.down, self.up = torch.nn.Parameter(torch.randn(4, 2)), torch.nn.Parameter(torch.randn(2, 4))
        self.d.register_forward_hook(lambda module, inputs, output: output + inputs[0] @ self.down @ self.up)

    def forward(self, x):
        return self.d(self.c(self.b(self.a(x).relu())))

    def head(self, x):
        return self.b(x).sin()

def create():
    torch.manual_seed(0)
    return Net()
"""


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")  # models still use it
def test_a_hook_of_a_linear_layer_computes_with_xnnpack_what_it_computes(build: Build) -> None:
    head = HEAD.replace("partitioners: []", "partitioners: [xnnpack]")
    built = build(head + method("forward", False) + method("head", False) + method("a", False), model=HOOKED)
    for entry in ("forward", "head", "a"):
        check(built, entry, entry, torch.randn(2, 4))


def test_a_run_gives_tensors_their_memory_back() -> None:
    net = torch.nn.Linear(2, 2)
    net.register_buffer("seen", torch.zeros(2, 2))
    weight = net.weight.detach().clone()

    def run() -> None:
        net.weight.data = net.weight * 2
        net.seen.data = torch.ones(4, 2)

    assigned_when_run(net, run)
    assert torch.equal(net.weight, weight)
    assert torch.equal(net.seen, torch.zeros(2, 2))
