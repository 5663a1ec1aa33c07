"""Converts the methods of a module to another dtype, and its weights with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch.export import ExportedProgram

from etbuild import notes
from etbuild.errors import BuildError, Problem, counted
from etbuild.folding import listed
from etbuild.plan.step_plans import ExportPlan
from etplugins.precision.graphs import Converted, functional
from etplugins.precision.kept import Kept

_TOLD = 1 / 3  # part of the operators: a note reports more that stay in float32
_FEW = 4  # operators: so many may stay in float32 in any method
_WAY = "keep the module that has it: `keep: {modules: [...]}`"


def convert(module: torch.nn.Module, programs: dict[str, ExportedProgram], export_plan: ExportPlan) -> None:
    """Converts exported methods and the weights of their module, in place: see `steps.method_change.Precision`."""
    precision = export_plan.model.precision
    kept, compute = Kept(precision.keep), getattr(torch, precision.compute)
    programs.update({name: functional(program) for name, program in programs.items()})
    converted = {name: Converted(program, compute, kept) for name, program in programs.items()}
    kept.check(module)
    tensors = {name: _tensors(program) for name, program in programs.items()}
    wanted = {id(tensors[name][key]) for name, each in converted.items() for key, wants in each.wants() if wants}
    wanted -= {id(tensors[name][key]) for name, each in converted.items() for key, wants in each.wants() if not wants}
    limit = torch.finfo(compute).max
    wanted -= _sharing([tensor for of_method in tensors.values() for tensor in of_method.values()])
    _check_finite(programs, wanted, compute, export_plan.leaves_weights)
    for name, each in converted.items():
        names = {key for key, tensor in tensors[name].items() if id(tensor) in wanted}
        each.store(names)
        for tensor in (tensors[name][key] for key in names):
            if tensor.dtype != compute:
                tensor.data = tensor.data.clamp(-limit, limit).to(compute)  # a mask of `finfo.min` stays finite
        for line in _notes(name, each, precision.compute):
            notes.add(line)


def _tensors(program: ExportedProgram) -> dict[str, torch.Tensor]:
    content = {**program.constants, **program.state_dict}
    return {name: tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)}


def _sharing(tensors: Sequence[torch.Tensor]) -> set[int]:
    """The identities of tensors that share memory with another one: a conversion would separate them."""
    of_memory: dict[int, set[int]] = {}
    for tensor in tensors:
        if tensor.numel():
            of_memory.setdefault(tensor.untyped_storage().data_ptr(), set()).add(id(tensor))
    return {each for found in of_memory.values() if len(found) > 1 for each in found}


def _check_finite(
    programs: dict[str, ExportedProgram], wanted: set[int], compute: torch.dtype, is_loaded_later: bool
) -> None:
    """Checks that the dtype can hold all parameters. Those of a checkpoint are checked when they are read."""
    found = {
        name: program.state_dict[name]
        for program in programs.values()
        for name in ([] if is_loaded_later else program.graph_signature.parameters)
        if id(program.state_dict[name]) in wanted and program.state_dict[name].numel()
    }
    problems = [
        Problem(f"`{name}` has numbers up to {largest:.3g}, which {str(compute)[6:]} cannot hold", _PATH, _WAY)
        for name, tensor in found.items()
        if torch.finfo(compute).max < (largest := float(tensor.abs().nan_to_num(0, 0).max()))
    ]
    BuildError.raise_if(problems)


_PATH = ("model", "dtype", "compute")


def _notes(name: str, method: Converted, dtype: str) -> Iterator[str]:
    """Notes about the operators that stay in float32, although nothing in the manifest keeps them."""
    if method.without_kernel:
        count = Counter(str(node.target).removeprefix("aten.") for node in method.without_kernel)
        named = listed([target for target, _ in count.most_common()])
        why = f"PyTorch cannot compute it in {dtype} on zeros, or it is a branch or loop"
        yield f"`{name}` computes {named} in float32: {why}"
    if len(method.constant) > max(_FEW, _TOLD * len(method.numbers)):
        share = f"{len(method.constant)} of {counted(len(method.numbers), 'operator')}"
        first = str(method.constant[0].target).removeprefix("aten.")
        yield (
            f"`{name}` computes {share} in float32, from `{first}` on: they depend on no input and no parameter, but "
            "on constants, integers and buffers"
        )
