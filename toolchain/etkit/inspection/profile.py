"""Finds out where the time of a method goes, from the events of an ETDump and facts about the program.

Shares and orders come from medians: one interrupted call changes a mean much, but hardly a median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError, counted, printable
from etbuild.inputs.source_lines import NO_LINES, Line, SourceLines
from etkit.inspection.etdump import Block, Event
from etkit.tables import duration, table

if TYPE_CHECKING:
    from etbuild.files.instructions import Instruction

SCHEMA = "executorch-profile/v1"
UNITS = {"ns": 1e6, "us": 1e3, "ms": 1.0, "s": 1e-3, "cycles": 1.0}
"""The ticks in a millisecond, by the unit of a clock. Cycles are not converted."""
_WHOLE, _LOAD = "Method::execute", ("Program::load_method", "Method::init")
_CALLS = {"OPERATOR_CALL": "operator", "DELEGATE_CALL": "delegate"}
_KERNEL = "native_call_"  # events of kernels name the operator without its namespace: `native_call_add.out`
_SHOWN = 30  # a text lists at most so many instructions, and parts of delegates


@dataclass(frozen=True)
class Times:
    """The time of something in a call of the method, over all measured calls, in milliseconds or cycles."""

    mean: float
    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Times:
        """Summarizes the times of at least one measured call."""
        return cls(fmean(values), median(values), min(values), max(values))


@dataclass(frozen=True)
class DelegatePart:
    """A part of a delegate: its name from the backend, its time in a call, and its share of the time of the call."""

    name: str
    time: Times
    share: float


@dataclass(frozen=True)
class TimedInstruction:
    """An instruction of the method.

    Attributes:
        number: Its number.
        operator: The operator, or the backend of a delegate.
        delegate: Whether a backend computes it.
        layer: The module that calls it; empty if it is not known.
        lines: The lines of the model that it comes from; empty if they are not known.
        runs: How often it runs in a call, on average.
        time: Its time in a call.
        share: Its share of the time of the call, from 0 to 1.
        parts: The parts of a delegate, if the backend reports them.
    """

    number: int
    operator: str
    delegate: bool
    layer: str
    lines: list[str]
    runs: float
    time: Times
    share: float
    parts: list[DelegatePart]


@dataclass(frozen=True)
class TimedOperator:
    """An operator or a backend, with all its instructions: their number, their time in a call, and their share."""

    operator: str
    delegate: bool
    instructions: int
    time: Times
    share: float


@dataclass(frozen=True)
class Profile:
    """Where the time of a method goes.

    Attributes:
        program: The name of the program's file.
        method: The method.
        unit: `ms` or `cycles`.
        calls: The number of measured calls.
        load: The time to load the method; None if the dump does not have it.
        total: The time of a call.
        outside: The time of a call that belongs to no instruction.
        operators: The operators and backends, the slowest first.
        instructions: The instructions that ran, the slowest first.
    """

    program: str
    method: str
    unit: str
    calls: int
    load: float | None
    total: Times
    outside: Times
    operators: list[TimedOperator]
    instructions: list[TimedInstruction]


@dataclass(frozen=True)
class Origins:
    """The origins of a method's instructions. All of them may be unknown.

    Attributes:
        nodes: For each instruction, the names of its nodes in the exported graph.
        layers: The module that calls a node, by the node's name.
        lines: The lines of the model.
    """

    nodes: Sequence[Sequence[str]] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    lines: SourceLines = NO_LINES

    def layer(self, number: int) -> str:
        """The module that calls the nodes of an instruction: the common beginning of their modules' names."""
        names = self.nodes[number] if number < len(self.nodes) else ()
        paths = [layer.split(".") for name in names if (layer := self.layers.get(name))]
        common = [parts[0] for parts in zip(*paths, strict=False) if len(set(parts)) == 1]
        return ".".join(common)

    def lines_of(self, method: str, number: int, operator: str) -> list[str]:
        """The lines of an instruction. If its nodes are unknown, the only line that calls its operator."""
        names = self.nodes[number] if number < len(self.nodes) else ()
        found: dict[Line, None] = {line: None for name in names for line in self.lines.of_node(method, name)}
        if not found and operator:
            of_operator = self.lines.of_operator(method, operator)
            found = dict.fromkeys(of_operator if len(of_operator) == 1 else ())
        return [str(line) for line in found]


@dataclass(frozen=True)
class Subject:
    """What was run: a method of a program, with its instructions and their origins."""

    program: str
    method: str
    instructions: Sequence[Instruction]
    origins: Origins


def summarize(blocks: Sequence[Block], subject: Subject, unit: str = "ns", warm_up: int = 0) -> Profile:
    """Summarizes the calls of a method.

    Args:
        blocks: The content of an ETDump.
        subject: The method.
        unit: The unit of the clock, one of `UNITS`.
        warm_up: How many calls at the beginning are left out.

    Raises:
        InputError: The ETDump has no such call of the method, or calls of another program.
    """
    if all(each.kind == "control" for each in subject.instructions):
        raise InputError.of(f"`{subject.method}` has no operator and no delegate, so there are no times to show")
    calls = [_Call(block.events) for block in blocks if any(event.name in _CALLS for event in block.events)]
    fitting = [call for call in calls if call.fits(subject.instructions)]
    if not fitting:
        why = "its events do not fit the instructions" if calls else "it has no events of instructions"
        hint = "name the program and the method that ran; the runtime needs an event tracer: see the page `Profiles`"
        raise InputError.of(f"the ETDump has no call of `{subject.method}`: {why}", hint)
    if warm_up >= len(fitting):
        warming = counted(len(fitting), "call")
        raise InputError.of(f"the ETDump has {warming} of `{subject.method}`, and all are for warming up")
    kept, scale = fitting[warm_up:], UNITS[unit]
    total = Times.of([call.whole / scale for call in kept])
    numbers = sorted({number for call in kept for number in call.times})
    timed = [_instruction(kept, number, subject, scale, total.median) for number in numbers]
    timed.sort(key=lambda each: (-each.time.median, each.number))
    load = [event.ticks / scale for block in blocks for event in block.events if event.name in _LOAD]
    return Profile(
        program=subject.program,
        method=subject.method,
        unit="cycles" if unit == "cycles" else "ms",
        calls=len(kept),
        load=max(load) if load else None,  # one of the events contains the other
        total=total,
        outside=Times.of([max(0, call.whole - sum(call.times.values())) / scale for call in kept]),
        operators=_operators(kept, timed, scale, total.median),
        instructions=timed,
    )


class _Call:
    """One call of a method: the time of each instruction, and of each part of a delegate, in ticks."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.times: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        self.parts: dict[int, dict[str, int]] = {}
        self._kinds: dict[int, set[str]] = {}
        self._kernels: dict[int, set[str]] = {}
        self.whole = 0
        for event in events:
            if event.name == _WHOLE:  # its instruction number has no meaning
                self.whole += event.ticks
            elif event.instruction is None:
                continue
            elif event.part is not None:
                parts = self.parts.setdefault(event.instruction, {})
                parts[event.part] = parts.get(event.part, 0) + event.ticks
            elif event.name in _CALLS:
                self.times[event.instruction] = self.times.get(event.instruction, 0) + event.ticks
                self.runs[event.instruction] = self.runs.get(event.instruction, 0) + 1
                self._kinds.setdefault(event.instruction, set()).add(_CALLS[event.name])
            elif event.name.startswith(_KERNEL):
                self._kernels.setdefault(event.instruction, set()).add(event.name.removeprefix(_KERNEL))
        self.whole = self.whole or sum(self.times.values())

    def fits(self, instructions: Sequence[Instruction]) -> bool:
        """Whether these may be the events of a method: without control flow, each of its instructions must have run."""
        kinds = {number: {each.kind} for number, each in enumerate(instructions) if each.kind != "control"}
        if any(self._kinds[number] != kinds.get(number) for number in self._kinds):
            return False
        for number, kernels in self._kernels.items():
            if kinds.get(number) == {"operator"} and instructions[number].name.rpartition("::")[2] not in kernels:
                return False
        jumps = any(each.name == "JumpFalseCall" for each in instructions)
        return bool(self._kinds) and (jumps or self._kinds.keys() == kinds.keys())


def _instruction(calls: Sequence[_Call], number: int, subject: Subject, scale: float, total: float) -> TimedInstruction:
    time = Times.of([call.times.get(number, 0) / scale for call in calls])
    of_program, origins = subject.instructions[number], subject.origins
    delegate = of_program.kind == "delegate"
    parts = []
    for name in dict.fromkeys(name for call in calls for name in call.parts.get(number, {})):
        of_part = Times.of([call.parts.get(number, {}).get(name, 0) / scale for call in calls])
        parts.append(DelegatePart(name, of_part, share(of_part.median, total)))
    return TimedInstruction(
        number=number,
        operator=of_program.name,
        delegate=delegate,
        layer=origins.layer(number),
        lines=origins.lines_of(subject.method, number, "" if delegate else of_program.name),
        runs=fmean([call.runs.get(number, 0) for call in calls]),
        time=time,
        share=share(time.median, total),
        parts=parts,
    )


def share(time: float, total: float) -> float:
    """The share of a time in the time of a call; 0 if the clock is too coarse to measure the call."""
    return time / total if total else 0.0


def _operators(
    calls: Sequence[_Call], timed: Sequence[TimedInstruction], scale: float, total: float
) -> list[TimedOperator]:
    """The sums of instructions with one operator or backend."""
    groups: dict[tuple[str, bool], list[int]] = {}
    for each in timed:
        groups.setdefault((each.operator, each.delegate), []).append(each.number)
    found = []
    for (operator, delegate), numbers in groups.items():
        time = Times.of([sum(call.times.get(number, 0) for number in numbers) / scale for call in calls])
        found.append(TimedOperator(operator, delegate, len(numbers), time, share(time.median, total)))
    return sorted(found, key=lambda each: (-each.time.median, each.operator))


def as_json(profile: Profile) -> dict[str, Any]:
    """The profile as JSON data, as `schemas/profile.schema.json` describes it."""
    return {"schema": SCHEMA, **asdict(profile)}


def shown(value: float, unit: str) -> str:
    """A time with three significant digits, in the units of `etbuild bench`: `12.3 µs`, `1.23 ms`, `1230 cycles`."""
    if unit != "ms":
        return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:.0f} {unit}"
    return duration(value / 1000) if value >= 0 else f"-{duration(-value / 1000)}"


def heading(profile: Profile) -> str:
    """What was measured, in one line."""
    total, unit = profile.total, profile.unit
    return (
        f"{printable(profile.program)} {printable(profile.method)}: {shown(total.median, unit)} a call (the median; "
        f"{shown(total.min, unit)} to {shown(total.max, unit)} in {counted(profile.calls, 'call')})"
    )


def text(profile: Profile) -> str:
    """The profile as text: the operators, the slowest instructions, and the parts of delegates."""
    unit = profile.unit
    by_operator = [("operator", "instructions", "time", "share")]
    by_operator += [
        (_named(each), str(each.instructions), shown(each.time.median, unit), f"{each.share:.1%}")
        for each in profile.operators
    ]
    outside = profile.outside.median
    of_call = share(outside, profile.total.median)
    by_operator.append(("(outside of instructions)", "", shown(outside, unit), f"{of_call:.1%}"))
    by_instruction = [("number", "operator", "time", "share", "layer", "line")]
    by_instruction += [
        (str(each.number), _named(each), shown(each.time.median, unit), f"{each.share:.1%}", each.layer, _where(each))
        for each in profile.instructions
    ]
    parts = [("instruction", "part", "time", "share")]
    parts += [
        (str(each.number), part.name, shown(part.time.median, unit), f"{part.share:.1%}")
        for each in profile.instructions
        for part in sorted(each.parts, key=lambda part: -part.time.median)
    ]
    sections = [
        heading(profile),
        f"time by operator\n{table(by_operator)}",
        _first("slowest instructions", by_instruction),
    ]
    return "\n\n".join(sections if len(parts) == 1 else [*sections, _first("inside of delegates", parts)])


def _first(title: str, rows: Sequence[Sequence[str]]) -> str:
    """The first rows of a table, below its title and its heading."""
    count = len(rows) - 1
    return f"{title}{f' ({_SHOWN} of {count})' if count > _SHOWN else ''}\n{table(rows[: _SHOWN + 1])}"


def _named(each: TimedOperator | TimedInstruction) -> str:
    return f"delegate {each.operator}" if each.delegate else each.operator


def _where(each: TimedInstruction) -> str:
    more = f" and {len(each.lines) - 1} more" if len(each.lines) > 1 else ""
    return f"{each.lines[0]}{more}" if each.lines else ""
