"""The inputs of measured calls: from the manifest, from options, or random ones that fit the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from etbuild.errors import InputError, counted, did_you_mean
from etbuild.guard.reads import watched_reads
from etbuild.inputs.step_context import Stage, StepContext
from etbuild.inputs.user_code import importable
from etbuild.key.declared import Inputs
from etbuild.key.import_graph import used_sources
from etbuild.key.key import data_in_key
from etbuild.plan.plan import Plan
from etbuild.surroundings.library_output import library_messages_off, stdout_for_results
from etbuild.surroundings.random_seeds import seed
from etkit import arguments
from etplugins.model_tests.parts import TestPlan
from etplugins.runtime import child

if TYPE_CHECKING:
    from etbuild.results import ProgramMethod, Value


def of_manifest(
    plan: Plan, tests: TestPlan, inputs: Inputs, sizes: Mapping[str, int], stage: Stage
) -> dict[str, list[Any]]:
    """The inputs of methods from the manifest: their example inputs, or random ones of other sizes.

    Args:
        plan: The plan.
        tests: The ranges of random inputs.
        inputs: The declared inputs.
        sizes: Sizes of dynamic dimensions, by name. A method without such a dimension gets its example inputs.
        stage: Is called to show progress.

    Raises:
        InputError: No method has a named dimension, a method does not take its size, or a file is missing.
        BuildError: The model cannot be made.
    """
    torch.set_num_threads(1)

    def make() -> dict[str, list[Any]]:
        used = used_sources(inputs, plan.export_plan)
        declared = inputs.only(data_in_key(inputs, plan.data_names))
        with library_messages_off(used.sources), stdout_for_results():
            seed(plan.export_plan.model.seed)  # modules may draw numbers when they are imported
            with importable(used, declared.data.values(), watched_reads):
                return _of_reference(plan, tests, StepContext(declared, stage), sizes)

    with stage("make the example inputs"):
        found: dict[str, list[Any]] = child.result("making the example inputs", make)
    return found


def _of_reference(plan: Plan, tests: TestPlan, context: StepContext, sizes: Mapping[str, int]) -> dict[str, list[Any]]:
    from etkit.running.testing import random_inputs
    from etkit.running.testing.reference import MethodCall, Reference

    examples = Reference.of_plan(plan, context).methods
    methods = plan.export_plan.methods
    dims = {name: random_inputs.ranges(methods[name], each) for name, each in examples.items()}
    known = sorted({name for each in dims.values() for name in each})
    for name in sizes:
        if name not in known:
            listed = f"the dynamic dimensions are {', '.join(known)}" if known else "no dimension is dynamic"
            raise InputError.of(f"--dim {name}: no method has this dimension", did_you_mean(name, known) or listed)
    found = {}
    for name, each in examples.items():
        own = {dim: size for dim, size in sizes.items() if dim in dims[name]}
        made = random_inputs.of_sizes(methods[name], tests.methods[name], each, own) if own else each
        found[name] = [_ready(leaf) for leaf in MethodCall(name, made).leaves]
    return found


def at_random(method: ProgramMethod) -> list[Any]:
    """Inputs that fit a program, in the largest sizes: random numbers, and 0 for integers and booleans.

    An integer may be a token or a position, and 0 is always one.
    """
    generator = torch.Generator().manual_seed(0)
    return [_at_random(each, generator) for each in method["inputs"]]


def _at_random(fact: Value, generator: torch.Generator) -> Any:
    if "dtype" not in fact:
        return fact["value"]
    dtype = getattr(torch, fact["dtype"])
    if not dtype.is_floating_point:
        return torch.zeros(fact["shape"], dtype=dtype)
    return torch.randn(fact["shape"], generator=generator).to(dtype)


def given(method: str, facts: ProgramMethod, texts: Iterable[str], others: Sequence[Any]) -> list[Any]:
    """The inputs of a method. Options may give some of them as `NUMBER=VALUE`.

    Args:
        method: The method's name, for errors.
        facts: The facts of the method.
        texts: The values of the option.
        others: The inputs without the options.

    Raises:
        InputError: A text has another form, or the method has no such input.
    """
    found = list(others)
    for text in texts:
        number, separator, value = text.partition("=")
        if not separator or not number.isdecimal():
            raise InputError.of(f"--input {text}: expected NUMBER=VALUE", "such as `0=[[1, 2]]` or `1=mask.npy`")
        if int(number) >= len(facts["inputs"]):
            count = len(facts["inputs"])
            raise InputError.of(f"--input {number}: `{method}` takes {counted(count, 'input')}, which count from 0")
        found[int(number)] = _ready(arguments.read_one(value, facts["inputs"][int(number)]))
    return found


def _ready(value: Any) -> Any:
    """An input in the form that the runtime takes."""
    return value.detach() if isinstance(value, torch.Tensor) else None if isinstance(value, str) else value


def describe(value: Any) -> dict[str, Any]:
    """An input as JSON data: a tensor's dtype and shape, or the value."""
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    return {"value": value}
