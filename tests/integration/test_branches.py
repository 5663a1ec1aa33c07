"""Results of branches and loops stay as they are while a program needs them, whichever branches run."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from executorch.runtime import Runtime

from .conftest import Build

MODEL = '''\
import random

import torch
from torch import cond
from torch._higher_order_ops.map import map


def nest(drawn, depth, known):
    """Random steps over `known` values: operators, and branches that are such steps again. Also how many values there
    are then."""
    steps = []
    for _ in range(drawn.randint(2, 4)):
        kind = drawn.choice(["branch", "branch", "loop", "shape", "sum"] if depth else ["shape", "sum"])
        inner = [nest(drawn, depth - 1, 2) for _ in range(2)] if kind == "branch" else None
        results = drawn.randint(1, 2) if inner else 1
        ends = [[drawn.randrange(count) for _ in range(results)] for _, count in inner or ()]
        steps.append((kind, drawn.randrange(known), drawn.randrange(known), drawn.randrange(4), inner, ends))
        known += results
    return steps, known


def computed(steps, values):
    for kind, one, other, number, inner, ends in steps:
        a, b = values[one], values[other]
        if kind == "branch":

            def branch(number):
                def run(*given):
                    found = computed(inner[number][0], [*given])
                    return tuple(found[end] + place for place, end in enumerate(ends[number]))

                return run

            values += cond(a[number] + b[0] > 0, branch(0), branch(1), (a, b))
        elif kind == "loop":
            values.append(map(lambda row: row * 2 + number, a.reshape(2, 2) + 1).reshape(4) - b)
        elif kind == "shape":
            values.append(a.reshape(2, 2).sum(0).repeat(2) / 2 + b)
        else:
            values.append((a.repeat(4**number).reshape(-1, 4) + 1).mean(0) - b * number)
    return values


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(4))

    def later(self, x):
        a = cond(x[0] > 0, lambda v: v * 3, lambda v: (v.repeat(64) * 2).reshape(64, -1).sum(0), (x,))
        b = cond(x[1] > 0, lambda v: (v.repeat(256) + 1).reshape(256, -1).sum(0), lambda v: v + 5, (x,))
        return a + b, a

    def operand(self, x):
        a = cond(x[0] > 0, lambda v: v * 3, lambda v: v - 4, (x,))
        return cond(x[1] > 0, lambda v: (v * 2).relu() + v, lambda v: (v + 5).relu() * v, (a,))

    def viewed(self, x):
        return cond(x[0] > 0, lambda v: v * 3, lambda v: v - 4, (x,)).reshape(2, 2) + 1

    def nested(self, x):
        def inner(v):
            a = cond(v[1] > 0, lambda t: t + 100, lambda t: t - 100, (v,))
            return a + cond(v[2] > 0, lambda t: t * 2, lambda t: t * 3, (v,)), a

        a, b = cond(x[0] > 0, inner, lambda v: (v * 2, v * 3), (x,))
        c, d = cond(x[3] > 0, lambda v: (v * 5, v * 6), inner, (b,))
        return a - c, b, d

    def kinds(self, x):
        a, b = cond(x[0] > 0, lambda v: (v > 1, v.long()), lambda v: (v < 1, v.long() + 1), (x,))
        c, d = cond(x[1] > 0, lambda v: (v > 2, v.long() - 7), lambda v: (v < 2, v.long() - 9), (x,))
        return a & c, a, b + d, b

    def looped(self, x):
        a = cond(x[0] > 0, lambda v: v * 3, lambda v: v - 4, (x,))
        rows = map(lambda row: row * 2 + 1, x.reshape(2, 2) + 1)
        b = cond(x[1] > 0, lambda v: v + 2, lambda v: v - 3, (x,))
        return a, rows + 0.5, a + b

    def kept(self, x):
        a = cond(x[0] > 0, lambda v, seen: v + seen, lambda v, seen: v - seen, (x, self.seen))
        self.seen.copy_(cond(x[1] > 0, lambda v: v * 2, lambda v: v + 1, (a,)))
        return a

    def sized(self, x):
        a = cond(x[0] > 0, lambda v: v * 3, lambda v: v - 4, (x,))
        b = cond(x[1] > 0, lambda v: v + 2, lambda v: v - 3, (x,))
        return a.reshape(-1, 2) + b.reshape(-1, 2), a

    def one(self, x):
        return cond(x[0] > 0, lambda v: v * 3, lambda v: v - 4, (x,)) + 1

    def random(self, seed, x):
        return tuple(computed(nest(random.Random(seed), 2, 1)[0], [x])[1:])

    def random_1(self, x):
        return self.random(1, x)

    def random_2(self, x):
        return self.random(2, x)

    def random_3(self, x):
        return self.random(3, x)


def create():
    return Net().eval()
'''
NAMES = ("kept", "kinds", "later", "looped", "nested", "one", "operand", "random_1", "random_2", "random_3", "viewed")
METHODS = "".join(f"  {name}: {{example_inputs: [{{shape: [4]}}]}}\n" for name in NAMES)
HEAD = 'schema: executorch-model/v1\nname: net\nmodel: {factory: "model:create"}\n'
SIZED = "  sized: {example_inputs: [{shape: [4]}], dynamic_shapes: [[{dim: 2*n, min: 2, max: 12}]]}\n"


def method(name: str) -> str:
    return f"{HEAD}methods: {{{name}: {{example_inputs: [{{shape: [4]}}]}}}}\n"


def flat(found: Any) -> list[torch.Tensor]:
    return [*found] if isinstance(found, (list, tuple)) else [found]


def test_no_branch_overwrites_what_another_one_returned(build: Build) -> None:
    made = build(f"{HEAD}methods:\n{METHODS}{SIZED}", model=MODEL)
    assert made.code == 0, made.err
    module: dict[str, Any] = {}
    exec(MODEL, module)
    program = Runtime.get().load_program(made.directory / "net.pte")
    generator = torch.Generator().manual_seed(0)
    for name in [*NAMES, "sized"]:
        loaded, net = program.load_method(name), module["create"]()
        assert loaded is not None
        for number, signs in enumerate(itertools.product([1.0, -1.0], repeat=4)):
            x = (torch.rand(4, generator=generator) * 3 + 0.25) * torch.tensor(signs)
            x = x.repeat(number % 3 + 1) if name == "sized" else x
            expected = flat(getattr(net, name)(x))
            for found, wanted in zip(loaded.execute([x]), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_nothing_is_copied_where_nothing_is_overwritten(build: Build) -> None:
    text = method("one")
    made = build(text, model=MODEL)
    assert made.code == 0, made.err
    program = made.read("net.pte")
    assert b"_clone_dim_order" not in program
    assert b"aten::mul" in program


def test_an_application_finds_what_a_branch_returns_in_its_own_memory(build: Build) -> None:
    planning = "executorch: {memory_planning: {alloc_graph_output: false}}\n"
    text = method("operand") + planning
    made = build(text, model=MODEL)
    assert made.code == 0, made.err
    assert b"_clone_dim_order" in made.read("net.pte")


ALGORITHM = """\
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy


def plan(alignment, specs, graph_module, graph_signature, extra_padding):
    graph_module.input_mem_buffer_sizes = []
    return MemoryPlanningAlgorithmSuite([greedy])(alignment, specs, graph_module, graph_signature, extra_padding)
"""


def test_a_plan_that_lets_a_branch_overwrite_other_tensors_is_refused(build: Build) -> None:
    planning = 'executorch: {memory_planning: {memory_planning_algo: "planning:plan"}}\n'
    text = method("later") + planning
    made = build(text, model=MODEL, planning=ALGORITHM)
    assert (made.code, made.files) == (1, [])
    assert "methods.later: by the memory plan, " in made.err
    assert "plan other tensors after it" in made.err
