"""Exports each method of the module as a `torch.export` program."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import io
import re
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from traceback import StackSummary, walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild import plugins, switches, workarounds
from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.exception_text import hints, readable, summary
from etbuild.export import (
    assignments,
    every_size,
    example_values,
    method_results,
    old_values,
    quantizers,
    strict_names,
    violated_shapes,
)
from etbuild.export.assignments import EagerMethod
from etbuild.export.example_values import DynamicShapes, dimension_names
from etbuild.export.quantizers import MethodQuantization
from etbuild.export.size_conditions import SizeConditions
from etbuild.foreign_errors import PASSING, from_exception, wrap_errors, wrap_library_errors
from etbuild.inputs import source_lines
from etbuild.inputs.given import Given
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import active_finder, failed, load_callable, package_line, source_line, wrap_user_error
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
    return replace(prepared, quantized=_quantized(prepared, quantization))


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
        program = every_size.export(prepared.quantized, prepared.arguments, {}, dynamic_shapes, strict=False)
    _check_ranges(program, prepared.shapes, conditions)
    method_results.make_plain(program)
    return program


def _quantized_error(error: BaseException, prepared: PreparedMethod, conditions: SizeConditions) -> BuildError:
    """The error for a quantized method that torch.export refuses."""
    if isinstance(error, every_size.TooManySizes):
        return _too_many_sizes(error, prepared)
    path = (*prepared.path, "quantize", "pt2e")
    hint = _violated_hint(str(error), conditions) if violated_shapes.MARK in str(error) else package_line(error)
    action = failed("exporting the quantized method", error)
    return from_exception(error, BuildError, path, action, hint, said=_message(error))


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
    workarounds.of_export().make_lowerable(program)
    for name, constant in program.constants.items():
        if isinstance(constant, torch.Tensor) and (constant.is_neg() or constant.is_conj()):
            program.constants[name] = row_major(constant)
    if strict:
        strict_names.restore(program, module, root)
    old_values.copy_sources(program)
    old_values.copy_inputs(program, prepared.name)
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
            program = every_size.export(root, prepared.arguments, prepared.keywords, dynamic_shapes, strict)
    except PASSING:
        raise
    except every_size.TooManySizes as error:
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
        raise _export_error(readable(error), prepared.name, prepared.job, conditions) from error
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
        every_size.export(root, prepared.arguments, prepared.keywords, dynamic_shapes, False)
    path, action = (*prepared.path, "entry"), f"exporting `{prepared.method.entry}`"
    what = f"the model catches an exception of `{name}`"
    way = "torch.export takes no exception that leaves a submodule: call the submodule only where it does not raise"
    if not raised:
        return BuildError.at(path, f"{action} failed: {what}", way)
    said = readable(raised[0])
    quoted = _text_of(source_line(said))
    at = f"the line is `{quoted}`" if quoted else None
    return BuildError.at(
        path, f"{failed(action, said)}: {what}, {_message(said)}", hints(at, _export_hint(said)[1], way)
    )


def _too_many_sizes(error: every_size.TooManySizes, prepared: PreparedMethod) -> BuildError:
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
    graph_module = program.module(check_guards=False)
    if quantization.trains:  # other methods share the parameters that training changes
        graph_module = copy.deepcopy(graph_module)
        written = _written(prepared)
    else:
        written = {name for name, _ in graph_module.named_buffers()}
    seed(prepared.job.plan.model.seed)
    return quantization.quantize(graph_module, written)


def _written(prepared: PreparedMethod) -> set[str]:
    """The buffers that a method writes to in inference: not the statistics of batch norms."""
    functional = _traced(prepared, prepared.shapes).run_decompositions({})  # now the signature lists them
    return set(functional.graph_signature.buffers_to_mutate.values())


def _batched(prepared: PreparedMethod) -> DynamicShapes:
    """The method's dynamic shapes with a first dimension of any size, for `dynamic_batch_size` of a recipe."""
    method, arguments = prepared.method, prepared.arguments
    shapes = [example_values.with_batch(*pair) for pair in zip(method.dynamic_shapes, arguments, strict=True)]
    return DynamicShapes(method.replace(dynamic_shapes=tuple(shapes)), arguments, prepared.keywords, prepared.path)


def _quantization(prepared: PreparedMethod) -> MethodQuantization | None:
    """What quantizes the graph of a method, from the manifest or the recipe; None if nothing does."""
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
        workarounds.of_export().change_loaded(program)
        _check_tensors(program, path, f"export the module again, after `{_UNWRAP}`")
        workarounds.of_export().make_lowerable(program)
        return old_values.drop_inputs(_with_one_input_per_tensor(program), name)


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


_FILL = "fill what keeps tensors between calls, such as a cache, in the factory"


_UNWRAP = "torchao.utils.unwrap_tensor_subclass(module)"


def _check_tensors(program: torch.export.ExportedProgram, path: DocumentPath, hint: str) -> None:
    """Fails if a method has a tensor without values or bytes of its own.

    A fake tensor has no values: another method computed it during tracing. A tensor subclass that wraps other tensors
    has no bytes to compare or write; `hint` says what to do about that.
    """
    for name, tensor in sorted({**program.state_dict, **program.constants}.items()):
        if isinstance(tensor, FakeTensor):
            message = f"the method reads `{name}`, which another method computes and something keeps"
            raise BuildError.at(path, message, _FILL)
        if is_traceable_wrapper_subclass(tensor):
            message = f"`{name}` is a `{type(tensor).__name__}`, not a plain tensor"
            raise BuildError.at(path, message, hint)


def _check_ranges(program: torch.export.ExportedProgram, shapes: DynamicShapes, conditions: SizeConditions) -> None:
    """Fails if tracing fixed or narrowed a dynamic dimension: the runtime would refuse some of the declared sizes."""
    users = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
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
            if bounds is not None and (bounds.lower > dim.min or bounds.upper < dim.max):
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


_DATA_DEPENDENT = (
    "a branch or a size depends on the values of a tensor, which an export does not know: choose between values by "
    "torch.where, between computations by torch.cond, and write torch._check for what always holds"
)
_OF_LAYERS = {
    "_detect_is_causal_mask": "the layer looks whether the mask is causal, unless the call says it: pass "
    "`tgt_is_causal` to a Transformer or a TransformerDecoder, `src_is_causal` to a Transformer, `is_causal` to a "
    "TransformerEncoder"
}
"""What to do about functions of PyTorch's layers that depend on values."""
_UNSUPPORTED = "strict export cannot trace this: change the model, or set `strict: false`"
# A word in the message or type of torch.export's error, the part of the method that caused it, and a hint.
_EXPORT_HINTS = (
    (
        "fake tensor in the exported program constant's list",
        "entry",
        f"something keeps a tensor that a method computes, and another one reads it: {_FILL}. Or a method writes to "
        "`.data` of a buffer: write to the buffer itself",
    ),
    ("GuardOnDataDependent", "entry", _DATA_DEPENDENT),
    ("data-dependent", "entry", _DATA_DEPENDENT),
    (violated_shapes.MARK, "dynamic_shapes", None),
    ("ConstraintViolation", "dynamic_shapes", "the example inputs or the model do not allow the declared range"),
    ("dynamic_shapes", "dynamic_shapes", None),
    ("in output, which is not a known type", "entry", method_results.HINT),
    ("Unsupported", "entry", _UNSUPPORTED),
    ("graph break", "entry", _UNSUPPORTED),
)


def _export_hint(error: BaseException) -> tuple[str, str | None]:
    """The part of a method that caused an error of torch.export, and what to do."""
    text = f"{type(error).__name__}: {error}"
    return next(((part, hint) for word, part, hint in _EXPORT_HINTS if word in text), ("entry", None))


def _export_error(error: BaseException, name: str, job: Exporting, conditions: SizeConditions) -> BuildError:
    method, text = job.plan.methods[name], str(error)
    part, hint = _export_hint(error)
    if violated_shapes.MARK in text:
        line, hint = None, hints(_violated_hint(text, conditions), _same_dimensions(text, name, job))
    else:
        line = source_line(error) or _quoted_line(str(error))
        hint = _data_dependent_hint(error) if hint == _DATA_DEPENDENT else hint
    quoted = _text_of(line)
    if "Could not extract specialized integer" in text and _assigns_to_element(quoted):
        hint = "an assignment takes no index that is a number which a tensor holds: write `x[i.reshape(1)] = y`"
    action = failed(f"exporting `{method.entry}`", error, line)
    path: DocumentPath = ("methods", name, part)
    huggingface = job.plan.model.huggingface
    if huggingface and part == "entry":  # users cannot change the code of the model
        hint, path = huggingface.export_hint, ("model", "huggingface")
    elif huggingface:
        hint = hints(hint, huggingface.shapes_hint)
    hint_text = hints(f"the line is `{quoted}`" if quoted else None, hint, package_line(error))
    return from_exception(error, BuildError, path, action, hint_text, said=_message(error))


def _data_dependent_hint(error: BaseException) -> str | None:
    """What to do about values that an export does not know; and the line of PyTorch's layer that needs them."""
    frames = walk_tb(error.__traceback__)
    of_layers = (each for each in frames if str(each[0].f_globals.get("__name__")).startswith("torch.nn."))
    trace = "".join(StackSummary.extract(of_layers).format()) or str(error)
    line = source_lines.innermost(trace, lambda file: None)
    if line is None or not line.file.startswith("torch/nn/"):
        return _DATA_DEPENDENT
    return hints(f"PyTorch reads them at {line}", _OF_LAYERS.get(line.function, _DATA_DEPENDENT))


def _violated_hint(text: str, conditions: SizeConditions) -> str | None:
    """A hint for dimensions that torch.export refuses: the code that fixes or narrows them, and the shapes to write."""
    return hints(conditions.about(violated_shapes.names(text)), violated_shapes.hint(text))


def _same_dimensions(text: str, name: str, job: Exporting) -> str | None:
    """A hint that names other methods with a dimension that torch.export narrows: they may fail next."""
    narrowed = {*violated_shapes.names(text)}
    methods = job.plan.methods.items()
    others = [
        f"`{other_name}`" for other_name, method in methods if other_name != name and narrowed & dimension_names(method)
    ]
    have = "have" if len(others) > 1 else "has"
    return f"{', '.join(others)} {have} this dimension too, and may need the same change" if others else None


def _text_of(line: str | None) -> str | None:
    """The text of a source line; None if it is not known. `line` has the form `model.py:12, in forward`."""
    name, _, number = (line or "").partition(",")[0].rpartition(":")
    source_lines = active_finder().contents.get(name, b"").decode("utf-8", "replace").splitlines()
    text = source_lines[int(number) - 1].strip() if number.isdecimal() and 0 < int(number) <= len(source_lines) else ""
    return text or None


def _assigns_to_element(text: str | None) -> bool:
    """Whether a line of a source has an assignment such as `x[i] = y`."""
    with contextlib.suppress(SyntaxError):
        nodes = ast.walk(ast.parse(text or ""))
        return any(isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store) for each in nodes)
    return False


def _message(error: BaseException) -> str:
    """torch's message without references to logs and settings."""
    text = str(error).partition(" If this type holds tensors")[0]
    if text != str(error):
        return f"{type(error).__name__}: {text}"
    if violated_shapes.MARK in text:
        return violated_shapes.message(text)
    return _with_legend(summary(error))


_SYMBOLS = {
    r"(?<![\w.])s\d\d+(?!\w)": "stands for a dynamic size",
    r"(?<![\w.])u\d+(?!\w)": "stands for a size or number that depends on the values of a tensor",
}
"""Patterns of torch's names for sizes, such as `s70` and `u1`, and their meaning."""


def _with_legend(text: str) -> str:
    """A message, and the meaning of each name of a size in it."""
    symbols = [(sorted({*re.findall(pattern, text)}), meaning) for pattern, meaning in _SYMBOLS.items()]
    legend = [f"`{name}` {meaning}" for names, meaning in symbols for name in names]
    return "; ".join([text, *legend])


def _quoted_line(text: str) -> str | None:
    """The last line of a declared source that a message quotes, as messages of TorchDynamo do; None without one."""
    last = None
    for line in text.splitlines():
        for name, path in active_finder().sources.items():
            marker = f'File "{path}", line '
            if marker in line:
                number, _, function = line.split(marker, 1)[1].partition(", ")
                last = f"{name}:{number}" + (f", {function.strip()}" if function else "")
    return last
