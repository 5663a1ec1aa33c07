"""Whether the applications that a manifest names can load a program, and what each has to link for it."""

from __future__ import annotations

from collections.abc import Iterator

from etbuild.errors import CheckError, Problem
from etbuild.plan.plan import Plan
from etbuild.report.parts import Added, Reported
from etbuild.results import LoweringFacts, Value
from etplugins.applications import tables
from etplugins.applications.parts import Application

_NAMED = 10  # in a message


def report(program: Reported) -> Added:
    """The parts of its library that each kind of application links, in the program's report.

    Raises:
        CheckError: An application cannot load the program. The error lists all reasons.
    """
    plan, lowering = program.plan, program.lowering
    problems: list[Problem] = []
    linked: dict[str, object] = {}
    for application in plan.applications:
        kind = tables.kind(application.kind)
        problems += _problems(kind, application, plan, lowering)
        linked[kind.name] = {"library": kind.library, "release": kind.release, "links": _links(kind, lowering)}
    CheckError.raise_if(problems)
    return Added(content={"applications": linked})


def _problems(kind: tables.Kind, application: Application, plan: Plan, lowering: LoweringFacts) -> Iterator[Problem]:
    yield from _files(kind, plan, lowering)
    yield from _shared_memory(kind, plan, lowering)
    yield from _backends(kind, application, lowering)
    yield from _kernels(kind, application, lowering)
    if plan.runner is None:  # the runner of the library passes the values
        yield from _values(kind, plan, lowering)


def _files(kind: tables.Kind, plan: Plan, lowering: LoweringFacts) -> Iterator[Problem]:
    lack = kind.named_data
    files = [artifact["file"] for artifact in lowering["artifacts"] if artifact["kind"] == "named_data"]
    if lack is None or (lack.with_runner and plan.runner is not None) or len(files) <= lack.most:
        return
    listed = ", ".join(f"`{file}`" for file in files[:_NAMED])
    message = f"`for: {kind.name}`: {kind.library} cannot load the files of the program ({listed}): {lack.what}"
    yield Problem(message, ("named_data",) if plan.named_data else ("model",), lack.hint, at_key=True)


def _shared_memory(kind: tables.Kind, plan: Plan, lowering: LoweringFacts) -> Iterator[Problem]:
    lack, methods = kind.shared_mutable_buffers, lowering["program"]["methods"]
    # ExecuTorch plans the buffers that methods share in a memory of their own, after that of intermediate results.
    sharing = sorted(name for name, method in methods.items() if any(method["memory"][1:]))
    if lack is None or not plan.share_mutable_buffers or len(sharing) < 2:
        return
    message = (
        f"`for: {kind.name}`: {' and '.join(sharing)} share buffers, and {kind.library} cannot do that: {lack.what}"
    )
    yield Problem(message, ("share_mutable_buffers",), lack.hint, at_key=True)


def _backends(kind: tables.Kind, application: Application, lowering: LoweringFacts) -> Iterator[Problem]:
    """The backends of delegates that an application lacks."""
    for name, method in sorted(lowering["program"]["methods"].items()):
        for backend in sorted(method["delegates"].keys() - {*application.backends} - kind.backends.keys()):
            message = f"`for: {kind.name}`: `{name}` calls the backend {backend}, and {kind.library} does not have it"
            own = f"{{kind: {kind.name}, backends: [{backend}]}}"
            hint = f"it has {', '.join(sorted(kind.backends))}: write other `partitioners`"
            yield Problem(message, ("methods", name), f"{hint}; if your application links it, write `for: [{own}]`")


def _kernels(kind: tables.Kind, application: Application, lowering: LoweringFacts) -> Iterator[Problem]:
    """The operators for which an application has no kernel."""
    for name, method in sorted(lowering["program"]["methods"].items()):
        lacking = [
            operator
            for operator in sorted(method["operators"])
            if operator not in application.kernels and kind.holder(operator) is None
        ]
        if lacking:
            listed = ", ".join(f"`{operator}`" for operator in lacking[:_NAMED])
            more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
            message = f"`for: {kind.name}`: {kind.library} has no kernel for {listed}{more}, which `{name}` calls"
            own = f"{{kind: {kind.name}, kernels: [{', '.join(lacking[:_NAMED])}]}}"
            hint = "let a backend take them, or write them with other operators"
            hint += f"; if your application links {kind.own_kernels}, write `for: [{own}]`"
            yield Problem(message, ("methods", name), hint)


def _values(kind: tables.Kind, plan: Plan, lowering: LoweringFacts) -> Iterator[Problem]:
    """The inputs and outputs that an application cannot pass or take. Constant methods are for those who ask: they
    may return a text."""
    methods = lowering["program"]["methods"]
    for name, method in sorted((name, methods[name]) for name in methods.keys() & plan.methods.keys()):
        for side, values, known in (
            ("input", method["inputs"], kind.inputs),
            ("output", method["outputs"], kind.outputs),
        ):
            for index, value in enumerate(values):
                if known is not None and (wrong := _wrong(value, known)) is not None:
                    verb = "pass" if side == "input" else "take"
                    message = f"`for: {kind.name}`: {kind.library} cannot {verb} {side} {index} of `{name}`: {wrong}"
                    yield Problem(message, ("methods", name), "convert it in a wrapper around the model")


def _wrong(value: Value, known: tables.Values) -> str | None:
    """Why a value is not among those that an application knows; None if it is."""
    if "dtype" not in value:
        kinds = ", ".join(sorted(known.kinds))
        return None if value["type"] in known.kinds else f"it is a value of type {value['type']}, not one of {kinds}"
    if known.dtypes is None or value["dtype"] in known.dtypes:
        return None
    return f"it is a tensor of {value['dtype']}, not one of {', '.join(sorted(known.dtypes))}"


def _links(kind: tables.Kind, lowering: LoweringFacts) -> list[str]:
    """The parts of its library that an application links for a program."""
    methods = lowering["program"]["methods"].values()
    parts = {kind.backends.get(backend) for method in methods for backend in method["delegates"]}
    parts |= {kind.holder(operator) for method in methods for operator in method["operators"]}
    return sorted(part for part in parts if part)
