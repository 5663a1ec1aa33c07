"""The module: what the factory returns, ready to be exported."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from etbuild.errors import BuildError
from etbuild.inputs.step_context import StepContext
from etbuild.inputs.user_code import SourceFinder, load_callable, wrap_user_error
from etbuild.plan.parts import ModuleSource
from etbuild.processes.random_seeds import seed


def create(source: ModuleSource, context: StepContext) -> torch.nn.Module:
    """The module in `eval()` mode, as its factory or its Hugging Face configuration makes it.

    It is an empty one where every method was exported already.

    Raises:
        InputError: The configuration is wrong.
        BuildError: The factory failed, or returned something else.
    """
    if source.huggingface is not None:
        from etbuild.model import huggingface

        return huggingface.create(source.huggingface, source.seed, context).eval()
    if source.factory is None:
        return torch.nn.Module()
    module = _call_factory(source, source.factory, context.finder)
    with wrap_user_error(("model", "factory"), f"`eval()` of what `{source.factory}` returned", context.finder):
        return _for_inference(module)


def _for_inference(module: torch.nn.Module) -> torch.nn.Module:
    """The module in `eval()` mode. Exported ones, as PT2E quantization makes, refuse that unless they are told to."""
    exported = [
        child for child in module.modules() if isinstance(child, torch.fx.GraphModule) and "eval" in vars(child)
    ]
    if exported:
        from torchao.quantization.pt2e import allow_exported_model_train_eval

        for child in exported:
            allow_exported_model_train_eval(child)
    module.eval()  # what it returns is left alone: an exported module returns None
    return module


def _call_factory(source: ModuleSource, reference: str, finder: SourceFinder) -> torch.nn.Module:
    path = ("model", "factory")
    factory = load_callable(reference, finder, path)
    seed(source.seed)
    with wrap_user_error(path, f"`{reference}`", finder):
        module = factory(**source.kwargs)
    if isinstance(module, dict):
        module = _joined(module, reference)
    if not isinstance(module, torch.nn.Module):
        raise BuildError.at(path, f"`{reference}` returned {type(module).__name__}, not a torch.nn.Module")
    scripted = [name for name, child in module.named_modules() if isinstance(child, torch.jit.ScriptModule)]
    if scripted:
        child = f"with `{scripted[0]}` in" if scripted[0] else "of"
        hint = "return the original module: torch.export does not accept TorchScript"
        raise BuildError.at(path, f"`{reference}` returned a module {child} TorchScript", hint)
    lazy = [name for name, parameter in module.named_parameters() if is_lazy(parameter)]
    if lazy:
        hint = "run the module once in the factory, or give its layers their sizes"
        raise BuildError.at(path, f"`{lazy[0]}` has no shape yet", hint)
    return module


def _joined(modules: dict[str, torch.nn.Module], reference: str) -> torch.nn.Module:
    """Several modules as one, whose children they are: what they share is shared.

    Raises:
        BuildError: Something else is among them, or one has a name that no child can have.
    """
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


def settle(module: torch.nn.Module) -> None:
    """Makes what ExecuTorch can lower of a module's parameters and buffers: in row-major layout, without gradients.

    Raises:
        BuildError: One has no content.
    """
    meta = [name for name, tensor in named_tensors(module).items() if tensor.is_meta]
    if meta:
        path = ("model", "factory")
        raise BuildError.at(path, f"`{meta[0]}` is on the meta device and has no content", "make the module on the CPU")
    for parameter in module.parameters():
        parameter.requires_grad_(False)  # a mutable buffer beside a parameter that requires grad cannot be lowered
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = row_major(tensor.data)


def row_major(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the strides that a new one of its shape has; XNNPACK refuses weights in other layouts.

    `contiguous()` keeps the strides of a dimension of size 1, which would reach the program's bytes.
    """
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor if tensor.stride() == strides else tensor.clone(memory_format=torch.contiguous_format)


def named_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name, in the order of the module; tied ones under each of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def loading_code(module: torch.nn.Module) -> str | None:
    """What of the module takes part in loading weights; None where loading only copies them.

    Such code may do anything when it sees the weights, so that the module has to be exported after it has run.
    """
    plain = torch.nn.Module
    tensors = named_tensors(module)
    for name, stored in module.state_dict(keep_vars=True).items():
        if isinstance(stored, torch.Tensor) and stored is not tensors.get(name):
            return f"what makes `{name}` of its state dict"
    for name, child in module.named_modules():
        hooks = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
        if any(getattr(child, hook, None) for hook in hooks):
            return f"a hook of `{name or type(child).__name__}`"
        for method in ("load_state_dict", "_load_from_state_dict"):
            overridden = getattr(type(child), method) is not getattr(plain, method)
            if overridden and not type(child).__module__.startswith("torch.nn."):
                return f"`{type(child).__name__}.{method}`"
    return None
