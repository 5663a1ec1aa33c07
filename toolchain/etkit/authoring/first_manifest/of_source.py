"""The manifest of a source that is built without one: `model.py:create`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from etbuild.errors import InputError, did_you_mean
from etbuild.key.declared import Inputs
from etkit.authoring.first_manifest.factory import of_factory
from etkit.authoring.first_manifest.first import First
from etkit.authoring.first_manifest.given_inputs import GivenInput

_QUANTIZED = {
    "int8": "  quantize: {{pt2e: {{quantizers: [{backend}], calibration: example_inputs}}}}\n",
    "8da4w": "  quantize: {{torchao: [{{config: 8da4w}}]}}\n",
    "8da8w": "  quantize: {{torchao: [{{config: 8da8w}}]}}\n",
}
_RANDOM = "The scales of int8 are those of one random input. Real inputs make it exact: see the page `Quantization`."


def of_source(
    named: str, inputs: Sequence[str], quantize: str | None, backend: str, declared: Callable[[Path], Inputs]
) -> tuple[First, Path]:
    """What a build of a source needs, and the directory from which it is imported. Calls the factory.

    Args:
        named: The file and the callable, as `models/net.py:create`.
        inputs: The inputs of `forward`, as the command line has them. Without them, likely inputs are tried.
        quantize: The quantization: `int8`, `8da8w` or `8da4w`; None for none.
        backend: The backend; `portable` for none.
        declared: Returns what a build reads whose sources are in a directory.

    Raises:
        InputError: The file or the callable is not there, an option has no meaning here, or it is open which file has
            the weights.
        BuildError: The factory failed.
    """
    text, _, name = named.rpartition(":")
    source = Path(text)
    _check(source, name)
    if quantize is not None and quantize not in _QUANTIZED:
        raise InputError.of(f"--quantize {quantize}: unknown", did_you_mean(quantize, _QUANTIZED))
    if quantize is not None and backend == "portable":
        raise InputError.of(f"--quantize {quantize} needs a backend, and `--backend portable` asks for none")
    source = source.resolve()
    root, module = source.parent, source.stem
    while (root / "__init__.py").exists():
        root, module = root.parent, f"{root.name}.{module}"
    given = [GivenInput.parse(each) for each in inputs]
    first = of_factory(f"{module}:{name}", "{}", root, given, declared(root))
    if first.open_weights:
        hint = "name the file as `weights` in a manifest: `etbuild init --factory` writes one; or move what is not used"
        raise InputError.of(f"which weights? {' '.join(first.open_weights)}", hint)
    if not given:
        first = _with_guesses(first)
    hint = "" if quantize is None else _QUANTIZED[quantize].format(backend=backend)
    remarks = [*first.remarks, _RANDOM] if quantize == "int8" else first.remarks
    return replace(first, hint=hint, remarks=remarks, backend=None if backend == "portable" else backend), root


def _with_guesses(first: First) -> First:
    """Says which inputs were found. Refuses a method for which there are none: its export would fail."""
    for name, inputs in first.guesses.items():
        if inputs is None:
            said = [f" {each}" for each in first.remarks if each.startswith(f"{name}: ")]
            message = f"`{name}` did not take the inputs that were tried.{''.join(said)}"
            raise InputError.of(message, "say `--input`, for example --input 1,3,64,64")
    found = ", ".join(f"{name} [{inputs}]" for name, inputs in first.guesses.items())
    remarks = [each for each in first.remarks if not each.startswith("Check `example_inputs`")]
    return replace(first, remarks=[f"These inputs are a guess, without `--input`: {found}", *remarks])


def _check(source: Path, name: str) -> None:
    """Refuses a file or a callable that is not there, before anything is imported."""
    try:
        tree = ast.parse(source.read_bytes())
    except OSError as error:
        raise InputError.of(f"{source}: {error.strerror}") from None
    except (SyntaxError, ValueError):
        return  # the import says where
    defined = [each.name for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    bound = {name for each in ast.walk(tree) for name in _bound(each)}
    if name not in {*defined, *bound} and "*" not in bound:
        raise InputError.of(
            f"{source} has no `{name}`", did_you_mean(name, [each for each in defined if each[0] != "_"])
        )


def _bound(node: ast.AST) -> list[str]:
    """The names that an import or an assignment binds."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [each.asname or each.name for each in node.names]
    return [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
