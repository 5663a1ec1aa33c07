"""Makes the module, and prepares it for the export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from etbuild.errors import BuildError, Problem
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import load_callable, wrap_user_error
from etbuild.model.module_sources import maker_of
from etbuild.model.tensor_bytes import FLOATING, row_major
from etbuild.model.tied_weights import overlapping
from etbuild.plan.parts import ModuleSource
from etbuild.surroundings.random_seeds import seed

_overlaps: WeakKeyDictionary[torch.nn.Module, dict[str, set[str]]] = WeakKeyDictionary()
_computed_in_eval: WeakSet[torch.nn.Module] = WeakSet()
_MOST_ATTRIBUTES = 5  # in a hint
_QUANTIZED = re.compile(r"torch\.ao\.nn(\.intrinsic)?\.quantized\b")


def create(source: ModuleSource, context: StepContext, loaded: bool = False) -> torch.nn.Module:
    """Makes the module with its factory or a plug-in. `for_inference` puts it into `eval()` mode after its weights are
    loaded.

    If all methods are from exported programs, there is no source, and the module is empty.

    Args:
        source: The origin of the module, with arguments and seed.
        context: The declared inputs of the step, which contain the factory.
        loaded: Whether checkpoints replace the content of all parameters, so that the content does not matter here.

    Raises:
        InputError: The source is wrong, such as a configuration.
        BuildError: The factory failed, or did not return a module that can be exported.
    """
    if (maker := maker_of(source)) is not None:
        return maker.create(source, context, loaded)
    if source.factory is None:
        return torch.nn.Module()
    module = _call_factory(source, source.factory)
    if source.dtype is not None:
        _convert(module, getattr(torch, source.dtype))
    return module


def _convert(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Converts the floating-point parameters and buffers of a module, one by one. Tied tensors stay tied."""
    convertible = {getattr(torch, name) for name in FLOATING}
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.dtype in convertible:
            tensor.data = tensor.data.to(dtype)


class _Computing(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Notes whether any operator runs."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = True
        return func(*args, **(kwargs or {}))


def for_inference(module: torch.nn.Module, source: ModuleSource) -> None:
    """Puts the module into `eval()` mode. Exported modules in it, such as those of PT2E, must allow that.

    Args:
        module: The module that `create` made from the source.
        source: The source.

    Raises:
        BuildError: Code of the module failed.
    """
    exported = [
        child for child in module.modules() if isinstance(child, torch.fx.GraphModule) and "eval" in vars(child)
    ]
    if exported:
        from torchao.quantization.pt2e import allow_exported_model_train_eval

        for child in exported:
            allow_exported_model_train_eval(child)
    with wrap_user_error(("model", "factory"), "`eval()` of the model"), _Computing() as mode:
        module.eval()
    if mode.any:
        _computed_in_eval.add(module)


def _call_factory(source: ModuleSource, reference: str) -> torch.nn.Module:
    path = ("model", "factory")
    factory = load_callable(reference, path)
    seed(source.seed)
    with wrap_user_error(path, f"`{reference}`"):
        module = factory(**source.kwargs)
    if isinstance(module, dict):
        module = _joined({name: _as_module(value) for name, value in module.items()}, reference)
    module = _as_module(module)
    if not isinstance(module, torch.nn.Module):
        message = f"`{reference}` returned {type(module).__name__}, not a torch.nn.Module"
        raise BuildError.at(path, message, _hint_for_value(module, reference, source.kwargs))
    scripted = [name for name, child in module.named_modules() if isinstance(child, torch.jit.ScriptModule)]
    if scripted:
        child = f"with `{scripted[0]}` in" if scripted[0] else "of"
        hint = "return the original module: torch.export does not accept TorchScript"
        raise BuildError.at(path, f"`{reference}` returned a module {child} TorchScript", hint)
    eager = [name for name, child in module.named_modules() if _is_quantized_eagerly(child)]
    if eager:
        hint = "quantize with `quantize` in the manifest, or with PT2E in the factory"
        raise BuildError.at(path, f"`{eager[0]}` is quantized in eager mode, which torch.export does not accept", hint)
    lazy = [name for name, parameter in module.named_parameters() if is_lazy(parameter)]
    if lazy:
        hint = "run the module once in the factory, or give its layers their sizes"
        raise BuildError.at(path, f"`{lazy[0]}` has no shape yet", hint)
    return module


def _hint_for_value(value: Any, reference: str, kwargs: Mapping[str, Any]) -> str | None:
    """A hint for a factory that returned no module: names attributes of the value that are modules, or says that the
    value is a class of modules. None for other values."""
    if isinstance(value, type):
        return (
            f"call it: the factory returns the class `{value.__name__}`" if issubclass(value, torch.nn.Module) else None
        )
    attributes = [name for name, child in getattr(value, "__dict__", {}).items() if isinstance(child, torch.nn.Module)]
    if not attributes:
        return None
    call = f"{reference.partition(':')[2]}({'...' if kwargs else ''}).{attributes[0]}"
    if len(attributes) == 1:
        return f"its attribute `{attributes[0]}` is a module: write a factory that returns `{call}`"
    listed = ", ".join(f"`{name}`" for name in attributes[:_MOST_ATTRIBUTES])
    return f"its attributes {listed} are modules: write a factory that returns one of them, such as `{call}`"


def _is_quantized_eagerly(module: torch.nn.Module) -> bool:
    """Whether a module is quantized in eager mode. `FloatFunctional` is in the same package, but computes floats."""
    return bool(_QUANTIZED.match(type(module).__module__)) and type(module).__name__ != "FloatFunctional"


def _as_module(value: Any) -> Any:
    """The module of an exported program, which checks the sizes of its inputs. Returns other values unchanged."""
    return value.module() if isinstance(value, torch.export.ExportedProgram) else value


def _joined(modules: dict[str, torch.nn.Module], reference: str) -> torch.nn.Module:
    """Makes one module with several modules as its children, which may share tensors. Raises BuildError if a value is
    not a module, or a key cannot be the name of a child."""
    joined, path = torch.nn.Module(), ("model", "factory")
    for name, module in modules.items():
        if not isinstance(module, torch.nn.Module):
            message = f"`{reference}` returned a dict with {type(module).__name__} at `{name}`, not a torch.nn.Module"
            raise BuildError.at(path, message)
        if not isinstance(name, str) or not name.isidentifier() or hasattr(joined, name):
            message = f"`{reference}` returned a dict with the key `{name}`, which cannot be part of an `entry`"
            raise BuildError.at(path, message, "use an identifier that torch.nn.Module does not have")
        joined.add_module(name, module)
    return joined


def normalize(module: torch.nn.Module) -> None:
    """Makes a module's parameters and buffers row-major and without gradients, so that ExecuTorch can lower them.

    Raises:
        BuildError: A tensor is on the meta device and has no content, or is sparse, nested or quantized by eager mode.
    """
    meta = [name for name, tensor in named_tensors(module).items() if tensor.is_meta]
    if meta:
        path = ("model", "factory")
        raise BuildError.at(path, f"`{meta[0]}` is on the meta device and has no content", "make the module on the CPU")
    problems = [
        Problem(f"`{name}` is {unusual}, which no program can hold", ("model", "factory"), hint)
        for name, tensor in named_tensors(module).items()
        for unusual, hint in _unusual(tensor)
    ]
    BuildError.raise_if(problems)
    _overlaps[module] = overlapping(named_tensors(module))
    for parameter in module.parameters():
        parameter.requires_grad_(False)  # otherwise modules with mutable buffers cannot be lowered
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = row_major(tensor.data)


def set_methods(module: torch.nn.Module, **methods: Any) -> None:
    """Gives a module a new class with these methods, derived from its class.

    A function on the instance would not work: every copy of the module would call it with the original module.
    """
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})


def overlaps(module: torch.nn.Module) -> dict[str, set[str]]:
    """The names of the parameters and buffers that shared a part of their memory before `normalize`, each with the
    names of the others. `normalize` may have separated them."""
    return _overlaps.get(module, {})


def _unusual(tensor: torch.Tensor) -> Iterator[tuple[str, str]]:
    """The reason why a tensor is not a plain one, with a hint. Subclasses of tensors are checked after the export."""
    if tensor.is_nested:
        yield "a nested tensor", "keep its parts in a padded tensor"
    elif tensor.layout != torch.strided:
        yield f"a tensor of the layout {str(tensor.layout).partition('.')[2]}", "convert it with `to_dense()`"
    elif tensor.is_quantized:
        yield f"a quantized tensor of eager mode ({tensor.dtype})", "quantize with `quantize` in the manifest"


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name, in the order of the module. A tied tensor has all its names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def weights_elsewhere(module: torch.nn.Module) -> str | None:
    """Why a module must have its weights before it can be exported: something else holds values made from them.

    Returns:
        The reason, for people; None if there is none.
    """
    code = loading_code(module)
    if code is not None:
        return f"{code} takes part in loading its weights"
    if module in _computed_in_eval:
        return "its `eval()` computes with its weights"
    stored = module.state_dict(keep_vars=True).keys()
    for name, others in overlaps(module).items():
        if name not in stored and (shared := sorted(others & stored)):
            return f"`{name}` shares memory with `{shared[0]}`, and is in no checkpoint"
    return None


def loading_code(module: torch.nn.Module) -> str | None:
    """Finds code of the module that runs when weights are loaded.

    Such code may do anything with the weights, so the module must be exported after the code has run.

    Returns:
        A description of the code for messages; None if loading only copies weights.
    """
    base_class = torch.nn.Module
    tensors = named_tensors(module)
    for name, stored in module.state_dict(keep_vars=True).items():
        if isinstance(stored, torch.Tensor) and stored is not tensors.get(name):
            return f"what makes `{name}` of its state dict"
    for name, child in module.named_modules():
        hooks = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
        if any(getattr(child, hook, None) for hook in hooks):
            return f"a hook of `{name or type(child).__name__}`"
        for method in ("load_state_dict", "_load_from_state_dict"):
            overridden = getattr(type(child), method) is not getattr(base_class, method)
            if overridden and not type(child).__module__.startswith("torch.nn."):
                return f"`{type(child).__name__}.{method}`"
    return None
