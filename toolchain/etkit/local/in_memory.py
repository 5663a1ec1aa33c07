"""Builds a module that is in memory, as in a notebook: `etbuild.build(module, inputs)`."""

from __future__ import annotations

import copy
import inspect
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from etbuild.errors import BuildError
from etkit.local.interface import Built, Scratch, load

if TYPE_CHECKING:
    import torch

_EXPORTED = "module.pt2"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def build(  # noqa: PLR0913 - the options have names
    module: torch.nn.Module,
    inputs: Sequence[Any],
    directory: str | Path | None = None,
    *,
    keywords: Mapping[str, Any] = _NOTHING,
    dynamic_shapes: Any = None,
    name: str = "program",
    backend: str | None = "xnnpack",
    cache: bool = True,
    cache_directory: str | Path | None = None,
) -> Built:
    """Builds a program with the method `forward` of a module, and compares it with the module on these inputs.

    The module is exported in this process, in evaluation mode. The build reads the exported program and nothing else,
    so equal exports come from the cache. A module that is quantized by torchao's `quantize_` stays quantized.

    Args:
        module: The module.
        inputs: The positional inputs of `forward`.
        directory: The directory for the artifacts; None for a temporary one, which is removed with the result.
        keywords: The keyword inputs. The program takes them after the others, in the order of the parameters.
        dynamic_shapes: The sizes that vary, as `torch.export.export` takes them.
        name: The name of the program.
        backend: The backend that gets what it can compute; None for ExecuTorch's own kernels.
        cache: Whether steps whose inputs have not changed come from the local cache.
        cache_directory: The directory of that cache; None for the default.

    Raises:
        InputError: A name is wrong, or the backend is not there.
        BuildError: The module cannot be exported or lowered, or the program computes something else than the module.
    """
    given = Scratch()
    named = {key: keywords[key] for key in sorted(keywords, key=_places(module, keywords))}
    path = given.path / _EXPORTED
    with _evaluated(module):
        quantized = _export(module, inputs, named, dynamic_shapes, path)
    manifest: dict[str, Any] = {
        "schema": "executorch-model/v1",
        "name": name,
        "defaults": {"partitioners": [] if backend is None else [backend]},
        "methods": {"forward": {"program": _EXPORTED}},
    }
    (given.path / "manifest.yaml").write_text(json.dumps(manifest), "utf-8")  # JSON is YAML
    built = load(given.path / "manifest.yaml").build(cache=cache, cache_directory=cache_directory)
    _compare(built, module, inputs, named, quantized=quantized)
    return built if directory is None else _moved(built, Path(directory))


def _moved(built: Built, directory: Path) -> Built:
    """Writes the artifacts of a build into a directory, each whole."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in built.artifacts:
        shutil.copyfile(path, scratch := directory / f".etbuild-{path.name}")
        scratch.replace(directory / path.name)
    return Built(directory, built.key, [directory / path.name for path in built.artifacts])


def _places(module: torch.nn.Module, keywords: Mapping[str, Any]) -> Callable[[str], int]:
    """The place of a keyword input among the parameters of `forward`."""
    names = [*inspect.signature(module.forward).parameters, *keywords]
    return names.index


@contextmanager
def _evaluated(module: torch.nn.Module) -> Iterator[None]:
    """Puts a module and its submodules into evaluation mode, each for this context."""
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training


def _export(
    module: torch.nn.Module, inputs: Sequence[Any], keywords: Mapping[str, Any], dynamic_shapes: Any, path: Path
) -> bool:
    """Exports a module into a file. Returns whether it is quantized."""
    import torch

    from etbuild.exception_text import summary
    from etplugins.comparison.graph import is_quantized

    try:
        with torch.no_grad():
            exported = torch.export.export(module, tuple(inputs), dict(keywords), dynamic_shapes=dynamic_shapes)
    except Exception as error:  # the errors of torch.export have no common base class
        raise BuildError.of(f"torch.export does not accept the module: {summary(error)}") from error
    torch.export.save(exported, path)
    return is_quantized(exported)


def _compare(
    built: Built, module: torch.nn.Module, inputs: Sequence[Any], keywords: Mapping[str, Any], *, quantized: bool
) -> None:
    """Compares the program with the module itself: the build has compared it with what was exported."""
    import torch
    from torch.utils import _pytree as pytree

    from etplugins.comparison import accuracy

    given, named = copy.deepcopy((tuple(inputs), dict(keywords)))  # a module may write to its inputs
    with _evaluated(module), _kept_state(module), torch.no_grad():
        expected = pytree.tree_leaves(module(*given, **named))
    actual = built.program.method("forward")(*inputs, *keywords.values())
    built.program.reset()
    if found := accuracy.differences(actual, expected, None, quantized):
        message = f"the program computes something else than the module on the given inputs: {chr(10).join(found)}"
        raise BuildError.of(message, "a branch on `torch.compiler.is_exporting()`, or state that only Python sees?")


@contextmanager
def _kept_state(module: torch.nn.Module) -> Iterator[None]:
    """Gives the buffers of a module the values that they had, after this context."""
    before = [
        (each, name, buffer, None if buffer is None else buffer.clone())
        for each in module.modules()
        for name, buffer in each._buffers.items()
    ]
    try:
        yield
    finally:
        for each, name, buffer, value in before:
            if buffer is not None:
                buffer.copy_(value)
            each._buffers[name] = buffer
