"""What the `forward` of a class of transformers takes, for a first manifest."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from etplugins.transformers import offline


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
    """

    main: str
    names: tuple[str, ...]
    generates: bool
    decodes: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    loops: bool = False


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
    return ClassInputs(
        mains[0] if mains else "",
        tuple(parameters),
        model.can_generate(),
        tuple(_parameters(model.decode)) if hasattr(model, "decode") else (),
        tuple(name for name, each in parameters.items() if each.default is inspect.Parameter.empty),
        any("generate" in vars(each) for each in model.__mro__ if each.__module__ == model.__module__),
    )


def _parameters(method: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a method by name, without `self` and those that take any number of values."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = [each for each in inspect.signature(method).parameters.values() if each.kind not in kinds]
    return {each.name: each for each in found[1:]}
