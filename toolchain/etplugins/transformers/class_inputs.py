"""What the `forward` of a class of transformers takes, for a first manifest."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from etplugins.transformers import offline

_GIVEN = "model_input_names"
"""Where the classes of tokenizers and of other processors say the names of what they give to a model."""
_PROCESSORS = ("*process*.py", "tokenization_*.py", "feature_extraction_*.py")
_DOCUMENTED = re.compile(r"^\s*(\w+) \(`torch\.(\w+)` of shape `\(([^()]*)\)`", re.MULTILINE)
_INTEGERS = ("_ids", "_mask")  # the ends of names of inputs that hold integers, whatever their class in a docstring


@dataclass(frozen=True)
class ClassInputs:
    """The inputs of a class.

    Attributes:
        main: The name of its main input, as transformers says; of several the first.
        names: The names of all parameters of its `forward`.
        generates: Whether the class writes text or other tokens.
        decodes: The names of the parameters of its `decode`, if it has one.
        needed: The names of the parameters of its `forward` that have no default.
        loops: Whether it makes its results in a loop of its own, and not in that of all language models.
        given: The parameters of its `forward` that its tokenizer and its other processors give.
        kinds: What it reads, as transformers says: `text`, `image`, `audio`, `video`, `time`.
        documented: The dtypes of its inputs and the words for their sizes, as its docstring says.
    """

    main: str
    names: tuple[str, ...]
    generates: bool
    decodes: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    loops: bool = False
    given: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    documented: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)


def of_class(name: str) -> ClassInputs | None:
    """The inputs of a class; None if transformers has no such class of models. Imports transformers.

    Args:
        name: The name of the class.
    """
    transformers = offline.transformers()
    try:
        found = getattr(transformers, name, None)
    except (ImportError, RuntimeError):  # from a package that transformers imports
        return None
    if not inspect.isclass(found) or not issubclass(found, transformers.PreTrainedModel):
        return None
    model: Any = found
    main = model.main_input_name
    mains, parameters = [main] if isinstance(main, str) else main, _parameters(model.forward)
    kinds = getattr(model, "input_modalities", ())
    return ClassInputs(
        mains[0] if mains else "",
        tuple(parameters),
        model.can_generate(),
        tuple(_parameters(model.decode)) if hasattr(model, "decode") else (),
        tuple(name for name, each in parameters.items() if each.default is inspect.Parameter.empty),
        any("generate" in vars(each) for each in model.__mro__ if each.__module__ == model.__module__),
        tuple(name for name in _given(transformers, model) if name in parameters),
        (kinds,) if isinstance(kinds, str) else tuple(kinds),
        {name: each for name, each in _documented(model) if name in parameters},
    )


def _given(transformers: ModuleType, model: Any) -> dict[str, None]:
    """The names of what the processors of a class give. Those in its package are only read: to import them, packages
    for images and sounds are needed. Its tokenizer may be that of another family."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    package, found = Path(inspect.getfile(model)).parent, dict[str, None]()
    for path in (each for form in _PROCESSORS for each in sorted(package.glob(form))):
        found |= dict.fromkeys(_said(ast.parse(path.read_text("utf-8"))))
    tokenizer = TOKENIZER_MAPPING_NAMES.get(getattr(model.config_class, "model_type", ""))
    of_family = None if tokenizer is None else getattr(transformers, tokenizer, None)
    return {**found, **dict.fromkeys(getattr(of_family, _GIVEN, ()))}


def _said(source: ast.Module) -> Iterator[str]:
    """The texts in the definitions of `model_input_names`. Names that are no parameters are left out later."""
    for node in ast.walk(source):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        is_value = any(isinstance(each, ast.Name) and each.id == _GIVEN for each in targets)
        if is_value or (isinstance(node, ast.FunctionDef) and node.name == _GIVEN):
            constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
            yield from (value for value in constants if isinstance(value, str))


def _documented(model: Any) -> Iterator[tuple[str, tuple[str, tuple[str, ...]]]]:
    """The name of each input whose shape is in the docstring, with its dtype and the words for its sizes."""
    for name, kind, words in _DOCUMENTED.findall(inspect.getdoc(model.forward) or ""):
        is_integer = kind in ("LongTensor", "IntTensor") or name.endswith(_INTEGERS)
        sizes = tuple(word.strip() for word in words.split(",") if word.strip())
        yield name, ("int64" if is_integer else "float32", sizes)


def _parameters(method: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a method by name, without `self` and those that take any number of values."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = [each for each in inspect.signature(method).parameters.values() if each.kind not in kinds]
    return {each.name: each for each in found[1:]}
