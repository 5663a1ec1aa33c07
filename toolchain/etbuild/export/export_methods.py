"""Exports each method of the module as a `torch.export` program."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.value_ranges import bound_sympy

from etbuild import plugins, switches, workarounds
from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.exception_text import hints, readable
from etbuild.export import (
    assignments,
    example_values,
    export_errors,
    method_results,
    node_sources,
    quantizers,
    size_conditions,
    written_buffers,
)
from etbuild.export.assignments import EagerMethod
from etbuild.export.example_values import DynamicShapes
from etbuild.export.quantizers import MethodQuantization
from etbuild.export.size_conditions import SizeConditions
from etbuild.foreign_errors import PASSING, from_exception, wrap_errors, wrap_library_errors
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import failed, load_callable, package_line, source_line, wrap_user_error
from etbuild.model.module import named_tensors
from etbuild.model.tensor_bytes import row_major
from etbuild.model.tied_weights import memory, untie
from etbuild.plan.parts import ExportMethod
from etbuild.plan.step_plans import ExportPlan
from etbuild.surroundings.process_state import undone
from etbuild.surroundings.random_seeds import seed

if TYPE_CHECKING:
    from executorch.export import ExportRecipe


ReadProgram = Callable[[Path, str, DocumentPath], "torch.export.ExportedProgram"]
"""Reads the method in a declared file: gets the path, the name, and the place of the name. It may raise anything."""


@dataclass(frozen=True)
class Exporting:
    """The settings of an export, shared by all its methods.

    Attributes:
        plan: The export plan.
        context: The declared inputs of the step.
        recipe: The recipe that decides what the manifest leaves open; None without one.
    """

    plan: ExportPlan
    context: StepContext
    recipe: ExportRecipe | None = None


@dataclass(frozen=True)
class PreparedMethod:
    """A method with its inputs, ready for its export. With PT2E quantization, it is quantized already.

    Attributes:
        job: The settings of the export.
        name: The method's name.
        module: The module that has the method.
        entry: The callable of the module that is exported.
        arguments: The positional example inputs.
        keywords: The keyword example inputs.
        shapes: The dynamic shapes of all inputs.
        quantized: The method's graph with quantized operators, which is exported instead of the module; None without
            PT2E quantization.
    """

    job: Exporting
    name: str
    module: torch.nn.Module
    entry: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, object]
    shapes: DynamicShapes
    quantized: torch.fx.GraphModule | None = None

    @property
    def method(self) -> ExportMethod:
        """The method in the export plan."""
        return self.job.plan.methods[self.name]

    @property
    def path(self) -> DocumentPath:
        """The document path of the method."""
        return ("methods", self.name)


def prepare(job: Exporting, name: str, module: torch.nn.Module) -> PreparedMethod:
    """Prepares a method of the module for its export.

    If it has `quantize.pt2e`, exports it a first time, and quantizes it. The quantized form of the parameter `NAME` is
    called `NAME_quantized`.

    Args:
        job: The settings of the export.
        name: The method's name.
        module: The module.

    Raises:
        InputError: The inputs do not fit the method.
        BuildError: Tracing or quantizing failed. The error names the document path and the line of the model's source.
    """
    method, path = job.plan.methods[name], ("methods", name)
    seed(job.plan.model.seed)  # the same random numbers, whichever ones other factories have drawn
    arguments, keywords = example_values.make(method, module, path, job.context)
    with wrap_user_error((*path, "entry"), f"looking up `{method.entry}`"):
        entry = _resolve(module, method.entry, (*path, "entry"))
        keywords = example_values.in_signature_order(_signature_of(entry), keywords, (*path, "example_kwargs"))
    shapes = DynamicShapes(method, arguments, keywords, path)
    prepared = PreparedMethod(job, name, module, entry, arguments, keywords, shapes)
    quantization = _quantization(prepared)
    if quantization is None:
        return prepared
    if keywords:
        hint = "make them positional: calibration and training run the method on positional inputs"
        raise InputError.at((*path, "example_kwargs"), "`quantize.pt2e` does not accept keyword inputs", hint)
    quantized = _quantized(prepared, quantization)
    return replace(prepared, quantized=quantized, arguments=quantization.arguments(arguments, quantized))


def export_method(prepared: PreparedMethod) -> torch.export.ExportedProgram:
    """Exports a method with its dynamic shapes. Parameters keep their names in the module.

    Raises:
        BuildError: Tracing failed. The error names the document path and the line of the model's source.
    """
    if prepared.quantized is None:
        return _traced(prepared, prepared.shapes)
    conditions = SizeConditions()
    with (
        torch.no_grad(),
        wrap_errors(lambda error: _quantized_error(error, prepared, conditions)),
        switches.on("exporting"),
        conditions.watched(),
    ):
        dynamic_shapes = prepared.shapes.for_export(prepared.quantized.forward)
        program = size_conditions.export(prepared.quantized, prepared.arguments, {}, dynamic_shapes, strict=False)
    _check_ranges(program, prepared.shapes, conditions)
    method_results.make_plain(program)
    return program


def _quantized_error(error: BaseException, prepared: PreparedMethod, conditions: SizeConditions) -> BuildError:
    """The error for a quantized method that torch.export refuses."""
    if isinstance(error, size_conditions.TooManySizes):
        return _too_many_sizes(error, prepared)
    path = (*prepared.path, "quantize", "pt2e")
    of_shapes = size_conditions.VIOLATED in str(error)
    hint = export_errors.violated_hint(str(error), conditions) if of_shapes else package_line(error)
    action = failed("exporting the quantized method", error)
    return from_exception(error, BuildError, path, action, hint, said=export_errors.said_by(error))


@undone()
def _traced(prepared: PreparedMethod, shapes: DynamicShapes, training: bool = False) -> torch.export.ExportedProgram:
    method, module, recipe, entry = prepared.method, prepared.module, prepared.job.recipe, (*prepared.path, "entry")
    root, strict = root_of(prepared), recipe.strict if recipe and "strict" in method.from_recipe else method.strict
    conditions = SizeConditions()
    inputs, is_only = (prepared.arguments, prepared.keywords), len(prepared.job.plan.methods) == 1
    eager = EagerMethod(module, root, inputs, method.entry, entry, is_only)

    def trace() -> torch.export.ExportedProgram:
        program = _exported(prepared, root, shapes, strict, conditions)
        _check_tensors(program, entry, f"call `{_UNWRAP}` in the factory")
        return program

    with torch.no_grad(), _training(module, training):
        program = assignments.traced(eager, trace)
    method_results.check(program, entry)
    method_results.make_plain(program)
    workarounds.of_export().make_lowerable(program, entry)
    for name, constant in program.constants.items():
        if isinstance(constant, torch.Tensor) and (constant.is_neg() or constant.is_conj()):
            program.constants[name] = row_major(constant)
    if strict:
        node_sources.restore_names(program, module, root)
    written_buffers.copy_sources(program)
    written_buffers.copy_inputs(program, prepared.name)
    untie(program, {key: id(tensor) for key, tensor in named_tensors(module).items()})
    _check_ranges(program, shapes, conditions)
    if not training:  # in training mode, batch norms need several values, and dropout is random
        _check_small_sizes(prepared, eager, program, shapes)
    return program


def _exported(
    prepared: PreparedMethod, root: torch.nn.Module, shapes: DynamicShapes, strict: bool, conditions: SizeConditions
) -> torch.export.ExportedProgram:
    printed = io.StringIO()  # before an error, torch prints the unfinished graph, which is too long
    try:
        dynamic_shapes = shapes.for_export(root.forward)
        with contextlib.redirect_stderr(printed), switches.on("exporting"), conditions.watched():
            program = size_conditions.export(root, prepared.arguments, prepared.keywords, dynamic_shapes, strict)
    except PASSING:
        raise
    except size_conditions.TooManySizes as error:
        raise _too_many_sizes(error, prepared) from error
    except BaseException as error:  # the errors of torch.export have no common base class
        # If the method also fails in a plain call, the cause is in the inputs or in the model.
        example_values.check_fit(
            _signature_of(prepared.entry), prepared.arguments, prepared.keywords, (*prepared.path, "example_inputs")
        )
        running = f"running `{prepared.method.entry}` on the example inputs"
        with wrap_user_error((*prepared.path, "example_inputs"), running):
            root(*prepared.arguments, **prepared.keywords)
        if caught := re.match(_CAUGHT, str(error)):
            raise _error_of_caught(prepared, root, caught[1], dynamic_shapes) from error
        raise export_errors.export_error(readable(error), prepared.name, prepared.job.plan, conditions) from error
    sys.stderr.write(printed.getvalue())
    return program


_CAUGHT = r"Unexpected key _export_root\.(\S+), expected "
"""torch.export's message, with the name of a submodule, if the submodule raises an exception that the model catches."""


def _error_of_caught(prepared: PreparedMethod, root: torch.nn.Module, name: str, dynamic_shapes: Any) -> BuildError:
    """The error for a model that catches an exception of a submodule. A second export finds the exception."""
    submodule, raised = root.get_submodule(name), list[BaseException]()
    forward = submodule.forward

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        try:
            return forward(*arguments, **keywords)
        except Exception as error:
            raised.append(error)
            raise

    submodule.forward = recorded  # it stays: the build ends with this error
    with contextlib.suppress(Exception), switches.on("exporting"):
        size_conditions.export(root, prepared.arguments, prepared.keywords, dynamic_shapes, False)
    path, action = (*prepared.path, "entry"), f"exporting `{prepared.method.entry}`"
    what = f"the model catches an exception of `{name}`"
    way = "torch.export allows no exception that leaves a submodule: call the submodule only where it does not raise"
    if not raised:
        return BuildError.at(path, f"{action} failed: {what}", way)
    said = readable(raised[0])
    quoted = export_errors.text_of_line(source_line(said))
    at = f"the line is `{quoted}`" if quoted else None
    message = f"{failed(action, said)}: {what}, {export_errors.said_by(said)}"
    return BuildError.at(path, message, hints(at, export_errors.export_hint(said)[1], way))


def _too_many_sizes(error: size_conditions.TooManySizes, prepared: PreparedMethod) -> BuildError:
    return BuildError.at((*prepared.path, "dynamic_shapes"), str(error), "make the range of a dimension smaller")


def _quantized(prepared: PreparedMethod, quantization: MethodQuantization) -> torch.fx.GraphModule:
    shapes = _batched(prepared) if quantization.dynamic_batch else prepared.shapes
    quantization.check_batches(prepared.arguments, [dims for dims, _ in shapes.leaves])
    try:
        program = _traced(prepared, shapes, quantization.trains)
    except BuildError as error:
        if not quantization.dynamic_batch:
            raise
        message = f"`dynamic_batch_size` of the recipe does not suit the method `{prepared.name}`"
        raise BuildError(
            [Problem(f"{message}: {problem.message}", quantization.path) for problem in error.problems]
        ) from error
    written = _written(prepared) if quantization.trains else set[str]()
    seed(prepared.job.plan.model.seed)
    submodules = {name for name, _ in prepared.module.named_modules(remove_duplicate=False)}
    return quantization.quantize(program, written, submodules)


def _written(prepared: PreparedMethod) -> set[str]:
    """The buffers that a method writes to in inference: not the statistics of batch norms."""
    functional = _traced(prepared, prepared.shapes).run_decompositions({})  # now the signature lists them
    return set(functional.graph_signature.buffers_to_mutate.values())


def _batched(prepared: PreparedMethod) -> DynamicShapes:
    """The method's dynamic shapes with a first dimension of any size, for `dynamic_batch_size` of a recipe."""
    method, arguments = prepared.method, prepared.arguments
    shapes = [example_values.with_batch(*pair) for pair in zip_longest(method.dynamic_shapes, arguments)]
    return DynamicShapes(method.replace(dynamic_shapes=tuple(shapes)), arguments, prepared.keywords, prepared.path)


def _quantization(prepared: PreparedMethod) -> MethodQuantization | None:
    """The quantization of a method's graph, from the manifest or the recipe; None if there is none."""
    method, recipe = prepared.method, prepared.job.recipe
    of_recipe = recipe.quantization_recipe if recipe is not None else None
    by_recipe = of_recipe is not None and bool(of_recipe.quantizers) and "quantize" in method.from_recipe
    if not method.quantized_after_export and not by_recipe:
        return None
    path = (*prepared.path, "quantize")
    return quantizers.of_method(method.quantize, of_recipe, prepared.arguments, path, prepared.job.context)


@contextlib.contextmanager
def _training(module: torch.nn.Module, trained: bool) -> Iterator[None]:
    """Puts the module into training mode within this context if `trained`; afterwards it is in evaluation mode.

    A method that quantization trains is exported in training mode: batch norms and dropout have other operators there.
    """
    module.train(trained)
    try:
        yield
    finally:
        module.eval()


def load_method(export_plan: ExportPlan, name: str, inputs: Given) -> torch.export.ExportedProgram:
    """Loads a method that a user exported and saved with `torch.export.save`.

    Args:
        export_plan: The export plan.
        name: The method's name. It has a `program` in the plan.
        inputs: The declared inputs, which contain the file.

    Raises:
        InputError: The file is not declared, or is not a readable exported program.
        BuildError: A weight is a tensor subclass.
    """
    file, path = export_plan.methods[name].program, ("methods", name, "program")
    assert file is not None
    archive = inputs.find_data(file, path)
    read: ReadProgram = plugins.load("method_source", PurePath(file).suffix)
    hint = "if it has operators of your own, list the library or module that registers them in `custom_ops`"
    with wrap_library_errors(InputError, path, f"cannot read `{file}`", hint):
        program = read(archive, file, path)
        size_conditions.forget_ranges(program)
        _check_tensors(program, path, f"export the module again, after `{_UNWRAP}`")
        workarounds.of_export().make_lowerable(program, path)
        return written_buffers.drop_inputs(_with_one_input_per_tensor(program), name)


def _with_one_input_per_tensor(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with row-major tensors, and with one input for each tensor, even if the tensor has several names."""
    contents = {
        key: value
        for key, value in {**program.state_dict, **program.constants}.items()
        if isinstance(value, torch.Tensor)
    }
    memories = {key: memory(value) for key, value in contents.items()}
    untie(
        program, {key: memories[key] for key in contents if key not in program.graph_signature.lifted_tensor_constants}
    )
    row_major_tensors: dict[Hashable, torch.Tensor] = {}
    for content in (program._state_dict, program._constants):
        for key in [key for key in memories if key in content]:
            content[key] = row_major_tensors.setdefault(memories[key], _row_major(content[key]))
    return program


def _row_major(tensor: torch.Tensor) -> torch.Tensor:
    content = row_major(tensor.detach())
    return torch.nn.Parameter(content, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else content


def transform(job: Exporting, name: str, program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Runs the passes for exported programs (ExecuTorch's `aten_transform_passes`): the recipe's, then the manifest's.

    Args:
        job: The settings of the export.
        name: The method's name.
        program: The exported method.

    Raises:
        BuildError: A pass failed, or did not return an exported program.
    """
    for reference, path, function in _aten_passes(job):
        with wrap_user_error(path, f"`{reference}` for the method `{name}`"):
            program = function(name, program)
        if not isinstance(program, torch.export.ExportedProgram):
            message = f"`{reference}` returned {type(program).__name__}, not an ExportedProgram"
            raise BuildError.at(path, message)
    return program


def _aten_passes(job: Exporting) -> Iterator[tuple[str, DocumentPath, Callable[..., Any]]]:
    for function in (job.recipe.aten_transform_passes or []) if job.recipe else []:
        yield "a pass of the recipe", ("recipe",), function
    for index, reference in enumerate(job.plan.passes):
        path = ("passes", "aten", index)
        yield reference, path, load_callable(reference, path)


def _resolve(module: torch.nn.Module, entry: str, path: DocumentPath) -> Callable[..., Any]:
    value: Any = module
    for part in entry.split("."):
        if not hasattr(value, part):
            names = [key for key in dir(type(value)) if not key.startswith("_") and not hasattr(torch.nn.Module, key)]
            children = [key for key, _ in value.named_children()] if isinstance(value, torch.nn.Module) else []
            raise InputError.at(
                path, f"the module has no `{entry}`", did_you_mean(part, [*names, *children, "forward"])
            )
        value = getattr(value, part)
        if isinstance(value, types.ModuleType) or part.startswith("__"):
            raise InputError.at(path, f"`{entry}` is no method or submodule of the model: `{part}` belongs to Python")
    if not callable(value):
        raise InputError.at(path, f"`{entry}` is neither a method nor a submodule")
    return value  # type: ignore[no-any-return]


def _signature_of(entry: Callable[..., Any]) -> Callable[..., Any]:
    """The callable whose signature has the parameters of an entry."""
    return entry.forward if isinstance(entry, torch.nn.Module) else entry


def root_of(prepared: PreparedMethod) -> torch.nn.Module:
    """The module that `torch.export` calls to trace it: the module itself for `forward`, otherwise a new root.

    Calling the new root runs the entry of the module. The root shares the module's dictionary of parameters, buffers,
    children and attributes. So names stay the same, and a change of one module changes the other. The module keeps its
    own `forward`, `__call__` and hooks, so that the entry may call them.
    """
    module = prepared.module
    if prepared.method.entry == "forward":
        return module
    called, kind = _as_function(prepared.entry), type(module)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # an export names the root's class
    # These are properties, because properties override entries of the shared dictionary. If `_compiled_call_impl` is
    # set, `Module.__call__` runs it instead of hooks and `forward`.
    entered = {"forward": property(lambda self: called), "_compiled_call_impl": property(lambda self: called)}
    root: torch.nn.Module = object.__new__(type(kind.__name__, (torch.nn.Module,), {**names, **entered}))
    object.__setattr__(root, "__dict__", vars(module))
    return root


def _as_function(entry: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs the entry, with the signature of the entry and the `__code__` that `torch.export` needs.

    Returns a plain method or function unchanged, because strict export traces it best. For any other entry, such as a
    submodule, returns a new function that calls it, so that its hooks run.
    """
    if isinstance(entry, (types.MethodType, types.FunctionType)) and hasattr(entry, "__code__"):
        return entry

    def call(*args: Any, **kwargs: Any) -> Any:
        return entry(*args, **kwargs)

    call.__signature__ = inspect.signature(_signature_of(entry))  # type: ignore[attr-defined]
    return call


_UNWRAP = "torchao.utils.unwrap_tensor_subclass(module)"


def _check_tensors(program: torch.export.ExportedProgram, path: DocumentPath, hint: str) -> None:
    """Fails if a method has a tensor without values or bytes of its own.

    A fake tensor has no values: another method computed it during tracing. A tensor subclass that wraps other tensors
    has no bytes to compare or write; `hint` says what to do about that.
    """
    for name, tensor in sorted({**program.state_dict, **program.constants}.items()):
        if isinstance(tensor, FakeTensor):
            message = f"the method reads `{name}`, which another method computes and something keeps"
            raise BuildError.at(path, message, export_errors.FILL)
        if is_traceable_wrapper_subclass(tensor):
            message = f"`{name}` is a `{type(tensor).__name__}`, not a plain tensor"
            raise BuildError.at(path, message, hint)


def _check_ranges(program: torch.export.ExportedProgram, shapes: DynamicShapes, conditions: SizeConditions) -> None:
    """Fails if tracing fixed or narrowed a dynamic dimension: the runtime would refuse some of the declared sizes."""
    users = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    symbols = {each: limits for each, limits in program.range_constraints.items() if each.is_symbol}
    for name, (dims, path) in zip(users, shapes.leaves, strict=True):
        for position, dim in enumerate(dims or ()):
            if dim is torch.export.Dim.STATIC:
                continue
            size = values[name].shape[position]
            dim_path, cause = (*path, position), conditions.about([dim.__name__])
            if not free_symbols(size):  # tracing may also have given a symbol one value
                message = f"the model fixes the dimension `{shapes.text_of(dim)}` to {size}"
                raise BuildError.at(dim_path, message, hints(cause, "write `null`, or change the model"))
            bounds = program.range_constraints.get(size.node.expr)
            if bounds is None:
                continue
            bounds &= bound_sympy(size.node.expr, symbols)  # of `8 * s`, tracing may have narrowed only `s`
            if bounds.lower > dim.min or bounds.upper < dim.max:
                raise BuildError.at(
                    dim_path,
                    f"the model accepts only sizes {bounds.lower} to {bounds.upper} for `{shapes.text_of(dim)}`",
                    hints(cause, f"write min: {bounds.lower}, max: {bounds.upper}, or change the model"),
                )


def _check_small_sizes(
    prepared: PreparedMethod, eager: EagerMethod, program: torch.export.ExportedProgram, shapes: DynamicShapes
) -> None:
    """Fails if the exported method and the module differ for a size of 0 or 1: torch.export assumes larger sizes."""
    with torch.no_grad():
        differing = assignments.differing_sizes(eager, program, [dims for dims, _ in shapes.leaves])
    if differing is not None:
        message = f"for inputs of {differing}, the exported method gives something else than the model"
        hint = "torch.export assumes that no dynamic size is 0 or 1: write a larger `min`, or change the model"
        raise BuildError.at((*prepared.path, "dynamic_shapes"), message, hint)
