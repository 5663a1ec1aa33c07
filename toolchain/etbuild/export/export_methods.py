"""Export: one `torch.export` program for each method of the module."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import ConstantArgument
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from etbuild.errors import BuildError, DocumentPath, InputError, Problem, did_you_mean
from etbuild.exception_text import hints, shortened, summary, whole_error
from etbuild.export import assignments, example_values, pt2_file, strict_names
from etbuild.export.example_values import DynamicShapes
from etbuild.export.pt2_strings import Refused
from etbuild.inputs.declared import Inputs
from etbuild.inputs.user_code import SourceFinder, blame, load_callable, source_line
from etbuild.model.module import named_tensors, row_major
from etbuild.model.tied_weights import memory, untie
from etbuild.plan.plan import Plan
from etbuild.processes.random_seeds import seed

if TYPE_CHECKING:
    from executorch.export import ExportRecipe

    from etbuild.quantize.pt2e import Quantization


@dataclass(frozen=True)
class Exporting:
    """What methods are exported with.

    Attributes:
        plan: The export plan.
        inputs: What may be read.
        finder: The declared sources.
        recipe: Decides what the manifest leaves to it; None: there is none.
    """

    plan: Plan
    inputs: Inputs
    finder: SourceFinder
    recipe: ExportRecipe | None = None


@dataclass(frozen=True)
class Ready:
    """A method that is ready for its export: quantized, if it has to be.

    Attributes:
        what: What it is exported with.
        name: Its name.
        module: The module that has it.
        entry: What of the module is called.
        arguments: The positional inputs.
        keywords: The keyword inputs.
        shapes: The dynamic shapes of both.
        quantized: Its graph with quantized operators, which is exported in place of the module; None: it has none.
    """

    what: Exporting
    name: str
    module: torch.nn.Module
    entry: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    shapes: DynamicShapes
    quantized: torch.fx.GraphModule | None = None

    @property
    def method(self) -> dict[str, Any]:
        """The method, as the export plan has it."""
        return self.what.plan["methods"][self.name]  # type: ignore[no-any-return]

    @property
    def path(self) -> DocumentPath:
        """Where the manifest has it."""
        return ("methods", self.name)


def make_ready(what: Exporting, name: str, module: torch.nn.Module) -> Ready:
    """A method of the module that is ready for its export.

    A method with `quantize.pt2e` is exported a first time, and quantized: what is made of the parameter `NAME` is
    called `NAME_quantized`.

    Args:
        what: The method, others among them.
        name: Its name.
        module: The module.

    Raises:
        InputError: The inputs do not fit the method.
        BuildError: Tracing or quantizing failed. Names the place in the manifest and the line of the model's source.
    """
    method, path = what.plan["methods"][name], ("methods", name)
    seed(what.plan["model"]["seed"])  # other methods' factories of inputs and batches draw numbers too
    arguments, keywords = example_values.make(method, path, what.inputs, what.finder)
    with blame((*path, "entry"), f"looking up `{method['entry']}`", what.finder):
        entry = _resolve(module, method["entry"], (*path, "entry"))
        keywords = example_values.in_signature_order(_signature_of(entry), keywords, (*path, "example_kwargs"))
    shapes = DynamicShapes(method, arguments, keywords, path)
    ready = Ready(what, name, module, entry, arguments, keywords, shapes)
    how = _quantization(ready)
    if how is None:
        return ready
    if keywords:
        hint = "make them positional: calibration and training run the method on positional inputs"
        raise InputError([Problem("`quantize.pt2e` takes no keyword inputs", (*path, "example_kwargs"), hint)])
    return replace(ready, quantized=_quantized(ready, how))


def export_method(ready: Ready) -> torch.export.ExportedProgram:
    """Exports a method under its dynamic shapes. Parameters keep the names they have in the module.

    Raises:
        BuildError: Tracing failed. Names the place in the manifest and the line of the model's source.
    """
    if ready.quantized is None:
        return _traced(ready, ready.shapes)
    dynamic_shapes = ready.shapes.for_export(ready.quantized.forward)
    path = (*ready.path, "quantize", "pt2e")
    with torch.no_grad(), blame(path, "exporting the quantized method", ready.what.finder):
        return torch.export.export(ready.quantized, ready.arguments, dynamic_shapes=dynamic_shapes)


def _traced(ready: Ready, shapes: DynamicShapes, training: bool = False) -> torch.export.ExportedProgram:
    method, module, recipe, entry = ready.method, ready.module, ready.what.recipe, (*ready.path, "entry")
    root, strict = _root(ready), recipe.strict if recipe and "strict" in method["from_recipe"] else method["strict"]
    with torch.no_grad(), _training(module, training):
        sources = ready.what.finder.loaded_modules()
        with assignments.watched(module, sources) as assigned:
            program = _exported(ready, root, shapes, strict)
        _check_content(program, entry)
        _check_classes(program, entry, f"call `{_UNWRAP}` in the factory")
        if assigned.wants_run(program):
            arguments, keywords = pytree.tree_map(_shifted, (ready.arguments, ready.keywords))
            with blame(entry, f"running `{method['entry']}` on the example inputs", ready.what.finder):
                ran = assignments.assigned_when_run(module, lambda: root(*arguments, **keywords), sources)
                assigned.add(ran)
    assigned.check(program, entry)
    _check_results(program, entry)
    if strict:
        strict_names.settle(program, module)
    untie(program, {key: id(tensor) for key, tensor in named_tensors(module).items()})
    _check_ranges(program, shapes)
    return program


def _shifted(value: Any) -> Any:
    """A copy of an input with other floating-point numbers: what is computed from zeros tells little."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    return value + 0.7 if value.is_floating_point() else value.clone()


def _exported(ready: Ready, root: torch.nn.Module, shapes: DynamicShapes, strict: bool) -> torch.export.ExportedProgram:
    printed = io.StringIO()  # torch prints the graph so far before it raises: the error says it shorter
    try:
        dynamic_shapes = shapes.for_export(root.forward)
        with contextlib.redirect_stderr(printed):
            program = torch.export.export(
                root, ready.arguments, ready.keywords, dynamic_shapes=dynamic_shapes, strict=strict
            )
    except (Exception, SystemExit) as error:  # torch.export has no common base of its errors
        # What fails without being exported too is a matter of the inputs, or of the model alone.
        running = f"running `{ready.method['entry']}` on the example inputs"
        with blame((*ready.path, "example_inputs"), running, ready.what.finder):
            root(*ready.arguments, **ready.keywords)
        raise _export_error(error, ready.name, ready.what) from error
    sys.stderr.write(printed.getvalue())
    return program


def _quantized(ready: Ready, how: Quantization) -> torch.fx.GraphModule:
    from etbuild.quantize.calibration import Batches
    from etbuild.quantize.pt2e import quantize_method

    shapes = _batched(ready) if how.dynamic_batch else ready.shapes
    if isinstance(how.finds, Batches):
        how.finds.check(ready.arguments, [dims for dims, _ in shapes.leaves])
    try:
        program = _traced(ready, shapes, how.trains)
    except BuildError as error:
        if not how.dynamic_batch:
            raise
        message = f"`dynamic_batch_size` of the recipe does not suit the method `{ready.name}`"
        raise BuildError([Problem(f"{message}: {problem.message}", how.path) for problem in error.problems]) from error
    graph_module = program.module(check_guards=False)
    if how.trains:  # it has the module's own parameters, which other methods have too
        graph_module = copy.deepcopy(graph_module)
        written = _written(ready)
    else:
        written = {name for name, _ in graph_module.named_buffers()}
    seed(ready.what.plan["model"]["seed"])
    return quantize_method(graph_module, how, written, ready.what.finder)


def _written(ready: Ready) -> set[str]:
    """The buffers that a method writes to when it does not train: not the statistics of batch norms."""
    functional = _traced(ready, ready.shapes).run_decompositions({})  # before that, the signature names none
    return set(functional.graph_signature.buffers_to_mutate.values())


def _batched(ready: Ready) -> DynamicShapes:
    """The dynamic shapes, with a first dimension of any size: what `dynamic_batch_size` of a recipe asks for."""
    method, arguments = ready.method, ready.arguments
    shapes = [example_values.with_batch(*each) for each in zip(method["dynamic_shapes"], arguments, strict=True)]
    return DynamicShapes({**method, "dynamic_shapes": shapes}, arguments, ready.keywords, ready.path)


def _quantization(ready: Ready) -> Quantization | None:
    """How a method is quantized after it was exported: as the manifest says, or its recipe; None: not at all."""
    method, inputs, finder, recipe = ready.method, ready.what.inputs, ready.what.finder, ready.what.recipe
    pt2e = (method["quantize"] or {}).get("pt2e")
    of_recipe = recipe.quantization_recipe if recipe is not None else None
    if pt2e is None and (of_recipe is None or not of_recipe.quantizers or "quantize" not in method["from_recipe"]):
        return None
    from etbuild.quantize.pt2e import Wanted, from_plan, from_recipe

    wanted = Wanted(pt2e, ready.arguments, (*ready.path, "quantize", "pt2e"))
    if pt2e is not None and pt2e["quantizers"]:
        return from_plan(pt2e, wanted, inputs, finder)
    if of_recipe is None or not of_recipe.quantizers:
        hint = "name a quantizer: `quantizers: [xnnpack]`"
        raise InputError([Problem("the recipe has no quantizers", wanted.path, hint)])
    return from_recipe(of_recipe, wanted, inputs, finder)


@contextlib.contextmanager
def _training(module: torch.nn.Module, wanted: bool) -> Iterator[None]:
    """Who trains a method exports it as it is in training: batch norms and dropout are other operators there."""
    module.train(wanted)
    try:
        yield
    finally:
        module.eval()


def load_method(export_plan: Plan, name: str, inputs: Inputs) -> torch.export.ExportedProgram:
    """A method that was exported already, and saved with `torch.export.save`.

    Raises:
        InputError: The file is not declared, or is none.
    """
    file, path = export_plan["methods"][name]["program"], ("methods", name, "program")
    found = inputs.find_data(file, path)
    try:
        program = pt2_file.load(found)
        _check_classes(program, path, f"export the module again, after `{_UNWRAP}`")
        return _bound(program)
    except BuildError:
        raise
    except pt2_file.NotExported:
        hint = f'`torch.export.save(torch.export.export(module, inputs), "{file}")` writes one'
        raise InputError([Problem(f"`{file}` is no file of torch.export.save", path, hint)]) from None
    except Refused as error:
        raise InputError([Problem(f"cannot read `{file}`: {error}", path)]) from error
    except Exception as error:  # torch's deserializer has no common base of its errors
        hint = "operators that are not PyTorch's have to be registered: list what does so under `custom_ops`"
        raise InputError([Problem(f"cannot read `{file}`: {summary(error)}", path, hint)]) from error


def _bound(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with one tensor for each, whatever names it has, in a layout that can be lowered."""
    held = {
        key: value
        for key, value in {**program.state_dict, **program.constants}.items()
        if isinstance(value, torch.Tensor)
    }
    tensors = {key: memory(value) for key, value in held.items()}
    untie(program, {key: tensors[key] for key in held if key not in program.graph_signature.lifted_tensor_constants})
    settled: dict[Hashable, torch.Tensor] = {}
    for content in (program._state_dict, program._constants):
        for key in [key for key in tensors if key in content]:
            content[key] = settled.setdefault(tensors[key], _settled(content[key]))
    return program


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    content = row_major(tensor.detach())
    return torch.nn.Parameter(content, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else content


def transform(what: Exporting, name: str, program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program after the passes over it: ExecuTorch's `aten_transform_passes`, those of the recipe first."""
    for reference, path, function in _aten_passes(what):
        with blame(path, f"`{reference}` for the method `{name}`", what.finder):
            program = function(name, program)
        if not isinstance(program, torch.export.ExportedProgram):
            message = f"`{reference}` returned {type(program).__name__}, not an ExportedProgram"
            raise BuildError([Problem(message, path)])
    return program


def _aten_passes(what: Exporting) -> Iterator[tuple[str, DocumentPath, Callable[..., Any]]]:
    for function in (what.recipe.aten_transform_passes or []) if what.recipe else []:
        yield "a pass of the recipe", ("recipe",), function
    for index, reference in enumerate(what.plan["passes"]):
        path = ("passes", "aten", index)
        yield reference, path, load_callable(reference, what.finder, path)


def _resolve(module: torch.nn.Module, entry: str, path: DocumentPath) -> Callable[..., Any]:
    value: Any = module
    for part in entry.split("."):
        if not hasattr(value, part):
            known = [key for key in dir(type(value)) if not key.startswith("_") and not hasattr(torch.nn.Module, key)]
            children = [key for key, _ in value.named_children()] if isinstance(value, torch.nn.Module) else []
            raise InputError(
                [
                    Problem(
                        f"the module has no `{entry}`",
                        path,
                        did_you_mean(part, [*known, *children, "forward"]),
                    )
                ]
            )
        value = getattr(value, part)
    if not callable(value):
        raise InputError([Problem(f"`{entry}` is neither a method nor a submodule", path)])
    return value  # type: ignore[no-any-return]


def _signature_of(entry: Callable[..., Any]) -> Callable[..., Any]:
    """What has the parameters of an entry."""
    return entry.forward if isinstance(entry, torch.nn.Module) else entry


def _root(ready: Ready) -> torch.nn.Module:
    """What `torch.export` traces, which calls its root: the module itself for `forward`, else a root of its own.

    That root has the module's parameters, buffers, children and attributes, in the very same dictionary: names stay
    what they are, and what is written to one is written to the other. Calling it runs the entry of the module, whose
    own `forward`, `__call__` and hooks are as they were, so that the entry may call them.
    """
    module = ready.module
    if ready.method["entry"] == "forward":
        return module
    called, kind = _as_function(ready.entry), type(module)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}  # an export names the root's class
    # Properties go before what the shared dictionary may hold under these names. `Module.__call__` runs the second one,
    # where there is one, in place of hooks and `forward`.
    entered = {"forward": property(lambda self: called), "_compiled_call_impl": property(lambda self: called)}
    root: torch.nn.Module = object.__new__(type(kind.__name__, (torch.nn.Module,), {**names, **entered}))
    object.__setattr__(root, "__dict__", vars(module))
    return root


def _as_function(entry: Callable[..., Any]) -> Callable[..., Any]:
    """The entry with its signature and a `__code__`, which `torch.export` asks for.

    A plain method is itself, which strict export traces best; a submodule is called, so that its hooks run.
    """
    if isinstance(entry, (types.MethodType, types.FunctionType)) and hasattr(entry, "__code__"):
        return entry

    def call(*args: Any, **kwargs: Any) -> Any:
        return entry(*args, **kwargs)

    call.__signature__ = inspect.signature(_signature_of(entry))  # type: ignore[attr-defined]
    return call


def _check_results(program: torch.export.ExportedProgram, path: DocumentPath) -> None:
    """A program returns tensors and plain numbers; a graph with another result could be saved, and not be read."""
    for spec in program.graph_signature.output_specs:
        value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else None
        if not isinstance(value, (bool, int, float, type(None))):
            message = f"the method returns {shortened(repr(value), 80)}: no program returns a {type(value).__name__}"
            raise BuildError([Problem(message, path, "return tensors, numbers, or tuples, lists and dicts of such")])


_FILL = "fill what keeps tensors between calls, such as a cache, in the factory"


def _check_content(program: torch.export.ExportedProgram, path: DocumentPath) -> None:
    """A tensor that another method has computed when it was traced has no numbers."""
    for name, tensor in sorted({**program.state_dict, **program.constants}.items()):
        if isinstance(tensor, FakeTensor):
            message = f"the method reads `{name}`, which another method computes and something keeps"
            raise BuildError([Problem(message, path, _FILL)])


_UNWRAP = "torchao.utils.unwrap_tensor_subclass(module)"


def _check_classes(program: torch.export.ExportedProgram, path: DocumentPath, hint: str) -> None:
    """A weight of a class of its own has its tensors inside, and no bytes that could be compared or written."""
    for name, tensor in sorted({**program.state_dict, **program.constants}.items()):
        if is_traceable_wrapper_subclass(tensor):
            message = f"`{name}` is of the class `{type(tensor).__name__}`, and not a plain tensor"
            raise BuildError([Problem(message, path, hint)])


def _check_ranges(program: torch.export.ExportedProgram, shapes: DynamicShapes) -> None:
    """A dimension that tracing has fixed, or narrowed, would be refused at run time: fail now."""
    users = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    for name, (dims, path) in zip(users, shapes.leaves, strict=True):
        for position, dim in enumerate(dims or ()):
            if dim is torch.export.Dim.STATIC:
                continue
            size = values[name].shape[position]
            here = (*path, position)
            if isinstance(size, int):
                raise BuildError(
                    [
                        Problem(
                            f"the model fixes the dimension `{dim.__name__}` to {size}",
                            here,
                            "write `null`, or change the model",
                        )
                    ]
                )
            bounds = program.range_constraints.get(size.node.expr)
            if bounds is not None and (bounds.lower > dim.min or bounds.upper < dim.max):
                raise BuildError(
                    [
                        Problem(
                            f"the model takes sizes {bounds.lower} to {bounds.upper} of `{dim.__name__}` only",
                            here,
                            f"write min: {bounds.lower}, max: {bounds.upper}, or change the model",
                        )
                    ]
                )


# By a word in torch.export's message or type: the part of the method that is to blame, and what to do.
_EXPORT_HINTS = (
    (
        "fake tensor in the exported program constant's list",
        "entry",
        f"something keeps a tensor that a method computes, and another one reads it: {_FILL}",
    ),
    (
        "GuardOnDataDependent",
        "entry",
        "a branch depends on the values of a tensor: use torch.cond or torch.where, or torch._check",
    ),
    (
        "data-dependent",
        "entry",
        "a branch depends on the values of a tensor: use torch.cond or torch.where, or torch._check",
    ),
    ("Constraints violated", "dynamic_shapes", "the model fixes or narrows a dynamic dimension"),
    (
        "ConstraintViolation",
        "dynamic_shapes",
        "the example inputs or the model do not allow the declared range",
    ),
    ("dynamic_shapes", "dynamic_shapes", None),
    ("Unsupported", "entry", "strict export cannot trace this: change the model, or set `strict: false`"),
    ("graph break", "entry", "strict export cannot trace this: change the model, or set `strict: false`"),
)


def _export_error(error: BaseException, name: str, what: Exporting) -> BuildError:
    method, finder = what.plan["methods"][name], what.finder
    text = f"{type(error).__name__}: {error}"
    part, hint = next(((part, hint) for word, part, hint in _EXPORT_HINTS if word in text), ("entry", None))
    place = source_line(error, finder) or _quoted_line(str(error), finder)
    where = f" at {place}" if place else ""
    message = f"exporting `{method['entry']}` failed{where}: {_message(error)}"
    huggingface = what.plan["model"]["huggingface"]
    if huggingface and part == "entry":  # the code is not the user's
        instead = "write a factory" if huggingface["cache"] is None else "leave out `cache`, or write a factory"
        hint = f"`{huggingface['class']}` cannot be exported as it is with this configuration: {instead}"
        return BuildError([Problem(message, ("model", "huggingface"), hints(hint, whole_error(error, message)))])
    return BuildError([Problem(message, ("methods", name, part), hints(hint, whole_error(error, message)))])


def _message(error: BaseException) -> str:
    """torch's message without its own pointers to logs and settings; of violated constraints the suggestions too."""
    text = str(error)
    if "Constraints violated" in text:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return shortened(" ".join(lines[:8]))
    return summary(error)


def _quoted_line(text: str, finder: SourceFinder) -> str | None:
    """The last line of a declared source that the message itself quotes, as TorchDynamo's do."""
    found = None
    for line in text.splitlines():
        for name, path in finder.sources.items():
            marker = f'File "{path.absolute()}", line '
            if marker in line:
                number, _, function = line.split(marker, 1)[1].partition(", ")
                found = f"{name}:{number}" + (f", {function.strip()}" if function else "")
    return found
