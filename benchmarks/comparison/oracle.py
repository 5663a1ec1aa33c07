"""Decides whether a mutated program computes something else, for mutations.py: with many calls and no hint.

It shares nothing with the comparison that it judges: the clean program runs on the same calls, in the same runtime, and
PyTorch says how far rounding moves the clean outputs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from etbuild.export.example_values import inputs_of_graph
from etplugins.runtime import child
from etplugins.runtime.program_files import ProgramFiles
from etplugins.runtime.session import Session

_LARGEST_INTEGER = 1 << 15  # an integer that may be larger than this is no index
_CALLS = 48  # of a method without state
_STEPS = 24  # of a session of methods with state
_UNLIMITED = 4  # times the example: the largest tried size of an axis without a limit
_BEYOND_ROUNDING = 3  # times what lies between PyTorch and the clean program in the same call


@dataclass(frozen=True)
class Call:
    """A call of a method.

    Attributes:
        method: The method.
        what: Which inputs it has, for people.
        leaves: The inputs.
    """

    method: str
    what: str
    leaves: list[Any]


@dataclass(frozen=True)
class Known:
    """A session of the clean program.

    Attributes:
        calls: Its calls, from a freshly loaded program.
        outputs: The outputs of each.
        allowed: How far each element may be from them; None for outputs that show nothing.
    """

    calls: list[Call]
    outputs: list[list[Any]]
    allowed: list[list[torch.Tensor | None]]


@dataclass(frozen=True)
class Judge:
    """What is known of the clean program.

    Attributes:
        known: Its sessions.
        stateful: Whether its methods keep state.
    """

    known: list[Known]
    stateful: bool

    def difference(self, files: ProgramFiles, scratch: Path) -> str | None:
        """The first call with which a program returns something else than the clean one, for people; None if all
        outputs are near enough."""
        for number, known in enumerate(self.known):
            actual = _in_runtime(files, known.calls, scratch)
            if actual is None:
                return f"session {number}: the runtime crashes"
            for place, (call, outputs, wanted, allowed) in enumerate(
                zip(known.calls, actual, known.outputs, known.allowed, strict=True)
            ):
                found = "the runtime refuses it" if outputs is None else _apart(outputs, wanted, allowed)
                if found is not None:
                    which = f"call {place + 1} of `{call.method}`" if self.stateful else f"`{call.method}`"
                    return f"{which} with {call.what}: {found}"
        return None


class Oracle:
    """Calls of the methods of a program, and what the clean program returns.

    Args:
        programs: The exported methods, with their weights, by name.
        examples: Their example inputs.
        ranges: The smallest and largest number of their first inputs, as far as the manifest says.
        seed: Where random numbers come from.
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        examples: Mapping[str, Sequence[Any]],
        ranges: Mapping[str, Sequence[tuple[float, float] | None]],
        seed: int,
    ) -> None:
        self._programs = programs
        self._quantized = {
            name: any("quantize" in str(node.target) for node in program.graph.nodes)
            for name, program in programs.items()
        }
        self._inputs = {
            name: _Inputs(program, examples[name], ranges.get(name, ()), random.Random(f"{seed} {name}"))
            for name, program in programs.items()
        }
        self._stateful = any(map(_writes, programs.values()))
        self.judge = Judge([], self._stateful)

    def learn(self, files: ProgramFiles, scratch: Path) -> int:
        """Makes the calls with the clean program and with PyTorch. Returns how many calls there are."""
        for inputs in self._inputs.values():
            inputs.find_limits(self._accepts)
        for calls in self._sessions(files.shares_state):
            known = self._known(files, calls, scratch)
            if known is not None:
                self.judge.known.append(known)
        return sum(len(known.calls) for known in self.judge.known)

    def _known(self, files: ProgramFiles, calls: list[Call], scratch: Path) -> Known | None:
        """A session of those calls that both PyTorch and the runtime take, or None. A call that one of them refuses may
        have changed the state, so the others are made again without it."""
        while calls:
            expected = self._in_pytorch(calls)
            if None in expected:  # the runtime may end the process where PyTorch raises
                calls = [call for call, outputs in zip(calls, expected, strict=True) if outputs is not None]
                continue
            actual = _in_runtime(files, calls, scratch)
            if actual is None:
                return None
            clean = [outputs for outputs in actual if outputs is not None]
            if len(clean) == len(calls):
                made = zip(calls, clean, expected, strict=True)
                return Known(calls, clean, [self._allowed(call.method, one, other or []) for call, one, other in made])
            calls = [call for call, outputs in zip(calls, actual, strict=True) if outputs is not None]
        return None

    def _sessions(self, shared: bool) -> Iterator[list[Call]]:
        """The calls. Those of methods without state are one session; state needs several, and calls in a row."""
        if not self._stateful:
            for name, inputs in self._inputs.items():
                yield [Call(name, *inputs.made(number)) for number in range(_CALLS)]
            return
        one_by_one = [[name] for name in self._inputs]
        for names in [*one_by_one, *([list(self._inputs)] if shared and len(one_by_one) > 1 else [])]:
            for session in range(3):
                walking = session != 1  # positions grow, or jump
                yield [
                    Call(name, *self._inputs[name].made(step + session * _STEPS, step if walking else None))
                    for step in range(_STEPS)
                    for name in [names[step % len(names)]]
                ]

    def _accepts(self, program: ExportedProgram, leaves: list[Any]) -> bool:
        """Whether PyTorch computes the exported method with these inputs."""

        def run() -> bool:
            try:
                with torch.no_grad():
                    _called(program.module(check_guards=False), program, leaves)
            except Exception:  # noqa: BLE001 - operators raise anything
                return False
            return True

        try:
            return bool(child.result("PyTorch", run))
        except Exception:  # noqa: BLE001 - an operator may end the process
            return False

    def _in_pytorch(self, calls: list[Call]) -> list[list[Any] | None]:
        """The outputs of the exported methods in calls in a row; None for a call that PyTorch refuses."""

        def run() -> list[list[Any] | None]:
            modules = {name: self._programs[name].module(check_guards=False) for name in {c.method for c in calls}}
            found: list[list[Any] | None] = []
            state: dict[str, torch.Tensor] = {}
            for call in calls:
                module = modules[call.method]
                own = dict(module.named_buffers())
                with torch.no_grad():
                    for key, value in state.items():
                        if key in own and own[key].shape == value.shape:
                            own[key].copy_(value)
                    before = {key: value.clone() for key, value in own.items()}
                    try:
                        found.append(_called(module, self._programs[call.method], call.leaves))
                    except Exception:  # noqa: BLE001 - operators raise anything
                        for key, value in before.items():
                            own[key].copy_(value)
                        found.append(None)
                state.update({key: value.clone() for key, value in own.items()})
            return found

        try:
            found: list[list[Any] | None] = child.result("PyTorch", run)
        except Exception:  # noqa: BLE001 - an operator may end the process
            return [None] * len(calls)
        return found

    def _allowed(self, method: str, clean: list[Any], wanted: list[Any]) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = []
        for one, other in zip(clean, wanted, strict=True):
            if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.shape != other.shape:
                found.append(None)
            elif not one.is_floating_point():
                found.append(torch.zeros(()) if torch.equal(one, other) else None)
            else:
                found.append(_tolerance(one, other, self._quantized[method]))
        return found


def _writes(program: ExportedProgram) -> bool:
    """Whether a method keeps state: an operator writes to its input, or a buffer is an output."""
    schemas = [getattr(node.target, "_schema", None) for node in program.graph.nodes]
    written = any(schema is not None and schema.is_mutable for schema in schemas)
    return written or bool(program.graph_signature.buffers_to_mutate)


def _tolerance(clean: torch.Tensor, wanted: torch.Tensor, quantized: bool) -> torch.Tensor | None:
    """How far an element may be from that of the clean program; None if PyTorch has NaN elsewhere."""
    one, other = clean.to(torch.float64), wanted.to(torch.float64)
    natural = torch.where((one == other) | (one.isnan() & other.isnan()), 0.0, (one - other).abs())
    if natural.numel() and not bool(natural.isfinite().all()):
        return None
    finite = torch.where(one.isfinite(), one.abs(), 0.0)
    largest = float(finite.max()) if finite.numel() else 0.0
    rtol, of_largest = (1e-2, 1e-2) if clean.element_size() < 4 else (1e-3, 1e-4)
    if quantized:
        rtol, of_largest = 0.0, 2e-2
    furthest = float(natural.max()) if natural.numel() else 0.0
    return rtol * finite + of_largest * largest + _BEYOND_ROUNDING * furthest + (0.0 if largest else 1e-6)


def _apart(outputs: list[Any], wanted: list[Any], allowed: list[torch.Tensor | None]) -> str | None:
    if len(outputs) != len(wanted):
        return f"{len(outputs)} outputs in place of {len(wanted)}"
    for number, (one, other, most) in enumerate(zip(outputs, wanted, allowed, strict=True)):
        if most is None:
            continue
        if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return f"output {number} has another form"
        a, b = (one, other) if not one.is_floating_point() else (one.to(torch.float64), other.to(torch.float64))
        same = (a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b
        beyond = ~same & ~((a.double() - b.double()).abs() <= most)
        if bool(beyond.any()):
            place = int(beyond.flatten().nonzero()[0])
            return f"output {number} has {a.flatten()[place].item():.6g} in place of {b.flatten()[place].item():.6g}"
    return None


def _called(module: Any, program: ExportedProgram, leaves: list[Any]) -> list[Any]:
    copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    positional, keywords = pytree.tree_unflatten(copies, program.call_spec.in_spec)
    result = pytree.tree_leaves(module(*positional, **keywords), is_leaf=lambda value: value is None)
    return [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in result]


def _in_runtime(files: ProgramFiles, calls: list[Call], scratch: Path) -> list[list[Any] | None] | None:
    """The outputs of calls in a row on a freshly loaded program; None in place of those of a call that the runtime
    refuses, and in place of all if it crashes."""

    def run() -> list[list[Any] | None]:
        session = Session(files, scratch)
        found: list[list[Any] | None] = []
        for call in calls:
            try:
                found.append(session.call(call.method, call.leaves))
            except Exception:  # noqa: BLE001 - the runtime refuses a call
                found.append(None)
        return found

    try:
        found: list[list[Any] | None] = child.result("the runtime", run)
    except Exception:  # noqa: BLE001 - the runtime may end the process
        return None
    return found


class _Inputs:
    """Makes inputs of one method: sizes of all kinds, magnitudes of all kinds, and integers up to what is accepted."""

    def __init__(
        self,
        program: ExportedProgram,
        examples: Sequence[Any],
        ranges: Sequence[tuple[float, float] | None],
        rng: random.Random,
    ) -> None:
        self._program, self._examples, self._rng = program, examples, rng
        self._ranges = [*ranges, *[None] * (len(examples) - len(ranges))]
        self._shapes = [
            list(value.shape) if isinstance(value, torch.Tensor) else [] for value in inputs_of_graph(program)
        ]
        self._sizes = {
            symbol: (int(limits.lower), int(limits.upper) if bool(limits.upper < 1 << 31) else None)
            for symbol, limits in program.range_constraints.items()
            if bool(limits.lower >= 0)  # others are numbers that the method reads from a tensor
        }
        self._most: dict[int, int | None] = {}

    def find_limits(self, accepts: Callable[[ExportedProgram, list[Any]], bool]) -> None:
        """Finds the largest integer that PyTorch takes in each input of integers, if there is one."""
        for number, example in enumerate(self._examples):
            if not isinstance(example, torch.Tensor) or example.is_floating_point() or example.dtype == torch.bool:
                continue

            def taken(value: int, number: int = number, example: torch.Tensor = example) -> bool:
                leaves = list(self._examples)
                leaves[number] = torch.full_like(example, value)
                return accepts(self._program, leaves)

            most = min(_LARGEST_INTEGER, torch.iinfo(example.dtype).max)
            if taken(most):
                self._most[number] = None
                continue
            least = 0
            while most - least > 1:
                middle = (least + most) // 2
                least, most = (middle, most) if taken(middle) else (least, middle)
            self._most[number] = least

    def made(self, number: int, step: int | None = None) -> tuple[str, list[Any]]:
        """The inputs of a call, and what they are, for people.

        Args:
            number: Which call it is.
            step: The position for inputs of one integer, if positions grow.
        """
        sizes = self._chosen_sizes(number)
        if sizes is None:
            return "the example inputs", list(self._examples)
        seed = self._rng.randrange(1 << 30)
        generator = torch.Generator().manual_seed(seed)
        leaves, said = list[Any](), list[str]()
        for index, (example, shape) in enumerate(zip(self._examples, self._shapes, strict=True)):
            if not isinstance(example, torch.Tensor):
                leaves.append(example)
                continue
            concrete = [size if isinstance(size, int) else int(size.node.expr.subs(sizes)) for size in shape]
            style, value = self._value(index, example, concrete, generator, step)
            leaves.append(value.to(example.dtype))
            said.append(f"{style} {concrete}")
        return f"{', '.join(said)} (seed {seed})", leaves

    def _chosen_sizes(self, number: int) -> dict[Any, int] | None:
        """A value for each symbol; None for the example inputs."""
        if number == 0:
            return None
        found = {}
        for symbol, (least, most) in self._sizes.items():
            least = max(least, 1)
            if most is None:
                most = _UNLIMITED * self._example_of(symbol) + least
            near = [least, least + 1, least + 2, most, most - 1, most - 2, (least + most) // 2]
            near += [self._example_of(symbol), self._rng.randint(least, most), self._rng.randint(least, most)]
            found[symbol] = min(max(self._rng.choice(near), least), most)
        return found

    def _example_of(self, symbol: Any) -> int:
        for shape, example in zip(self._shapes, self._examples, strict=True):
            for dim, size in enumerate(shape):
                if not isinstance(size, int) and size.node.expr == symbol:
                    return int(example.shape[dim])
        return self._sizes[symbol][0]

    def _value(
        self, index: int, example: torch.Tensor, shape: list[int], generator: torch.Generator, step: int | None
    ) -> tuple[str, torch.Tensor]:
        if example.dtype == torch.bool:
            style = self._rng.choice(["random", "true", "false"])
            value = torch.randint(0, 2, shape, generator=generator)
            return style, {"random": value, "true": torch.ones(shape), "false": torch.zeros(shape)}[style]
        if example.is_floating_point():
            return self._floats(example, shape, self._ranges[index], generator)
        return self._integers(index, example, shape, generator, step)

    def _floats(
        self, example: torch.Tensor, shape: list[int], limits: tuple[float, float] | None, generator: torch.Generator
    ) -> tuple[str, torch.Tensor]:
        normal, uniform = (make(shape, generator=generator) for make in (torch.randn, torch.rand))
        if limits is not None:
            return f"{limits[0]} to {limits[1]}", limits[0] + (limits[1] - limits[0]) * uniform
        if example.numel() and not bool(example.isfinite().all()):
            own = example.flatten()
            return "a mask", own[torch.randint(0, own.numel(), shape, generator=generator)]
        styles: dict[str, Callable[[], torch.Tensor]] = {
            "normal": lambda: normal,
            "normal again": lambda: normal,
            "small": lambda: 0.03 * normal,
            "large": lambda: 10 * normal,
            "0 to 1": lambda: uniform,
            "0 to 255": lambda: 255 * uniform,
            "around 100": lambda: 100 + normal,
            "mostly zeros": lambda: torch.where(uniform < 0.2, normal, 0.0),
            "zeros": lambda: torch.zeros(shape),
            "constant": lambda: torch.full(shape, float(self._rng.choice([0.5, -2.0, 1.0, 7.0]))),
            "few integers": lambda: torch.round(2 * normal),
            "many magnitudes": lambda: normal * torch.pow(10.0, 4 * uniform - 2),
        }
        style = self._rng.choice(list(styles))
        return f"floats, {style}", styles[style]()

    def _integers(
        self, index: int, example: torch.Tensor, shape: list[int], generator: torch.Generator, step: int | None
    ) -> tuple[str, torch.Tensor]:
        limits, most = self._ranges[index], self._most[index]
        least = 0
        if limits is not None:
            least, most = int(limits[0]), int(limits[1])
        elif most is None:  # data, and no index
            info = torch.iinfo(example.dtype)
            least, most = max(info.min, -300), min(info.max, 300)
        count = math.prod(shape)
        if count == 1 and step is not None and example.numel() == 1:
            return "position", torch.full(shape, min(max(step, least), most))
        if example.dim() == 1 and example.numel() > 1 and bool((example.diff() == 1).all()):
            first = self._rng.randint(least, max(least, most - count))
            return "positions", (first + torch.arange(count)).clamp(least, most).view(shape)
        style = self._rng.choice(["any", "any", "growing", "near zero", "around zero", "one", "first and last"])
        anything = torch.randint(least, most + 1, shape, generator=generator)
        near = torch.randint(max(least, -10), min(most, 10) + 1, shape, generator=generator)
        values = {
            "any": lambda: anything,
            "growing": lambda: (least + (self._rng.randint(0, 99) + torch.arange(count)) % (most - least + 1)).view(
                shape
            ),
            "near zero": lambda: near.clamp(max(least, -2), min(most, 2)),
            "around zero": lambda: near,
            "one": lambda: torch.full(shape, self._rng.randint(least, most)),
            "first and last": lambda: torch.where(anything % 2 == 0, least, most),
        }
        return f"integers from {least} to {most}, {style}", values[style]()
