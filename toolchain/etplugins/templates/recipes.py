"""Recipes: how content is computed from weights, as JSON data.

{"weight": NAME}                        the content of a parameter or buffer, row by row
{"constant": HEX, "dtype", "shape"}     a small tensor that is no weight
{"operator", "arguments", "options"}    the result of an operator of PyTorch; if it has several results, number `result`
{"function", "arguments"}               the result of a function of a backend (`Backend.weight_functions`)

Recipes come from lowering without weights (`unbound`). They contain only what lowering computed with an operator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from etbuild.model.tensor_bytes import dtype_name, flat_bytes

Recipe = dict[str, Any]

MARK = b"etbuild: not the content of a weight, but how to compute it\n"
"""Each recipe in place of content begins with this. No written file may contain it."""
_MOST_CONSTANT = 1 << 12  # bytes: a recipe holds a constant up to this size
_MOST = 1 << 16  # characters of a recipe
_ENUMS = {
    "dtype": {dtype_name(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
    "memory_format": {str(value): value for value in vars(torch).values() if isinstance(value, torch.memory_format)},
    "layout": {str(torch.strided): torch.strided},
    "device": {"cpu": torch.device("cpu")},
    "float": {str(value): value for value in (math.inf, -math.inf, math.nan)},
}


_OF_COPY = {"device", "dtype", "layout", "memory_format"}


class NoRecipe(Exception):
    """Something cannot be written as a recipe."""


Form = list[Any]
"""The dtype of a tensor, its sizes and its strides."""


def form(tensor: torch.Tensor) -> Form:
    """The form of a tensor."""
    return [dtype_name(tensor.dtype), list(tensor.shape), list(tensor.stride())]


def weight(name: str) -> Recipe:
    """The recipe of a parameter or buffer."""
    return {"weight": name}


def constant(tensor: torch.Tensor) -> Recipe:
    """The recipe of a tensor that is no weight. Of a tensor that has one number everywhere, it holds this number once.

    Raises:
        NoRecipe: It is too large.
    """
    if tensor.stride() != torch.empty(tensor.shape, device="meta").stride():
        raise NoRecipe("a constant with other strides meets the content")
    content = flat_bytes(tensor).view(-1, tensor.itemsize)
    if bool((content == content[:1]).all()):
        content = content[:1]
    if content.numel() > _MOST_CONSTANT:
        raise NoRecipe(f"a constant of {tensor.nbytes} bytes meets the content")
    return {"constant": bytes(content.numpy()).hex(), "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}


def call(
    operator: torch._ops.OpOverload, arguments: Any, options: Any, recipe_of: Callable[[torch.Tensor], Recipe]
) -> Recipe:
    """The recipe of the result of an operator.

    Args:
        operator: The operator.
        arguments: Its positional arguments.
        options: Its keyword arguments.
        recipe_of: Returns the recipe of each tensor among them.

    Raises:
        NoRecipe: The operator changes an argument, draws random numbers or reads files, or a recipe would be too large.
    """
    if not _only_computes(operator):
        raise NoRecipe(f"`{operator}` does more than to compute with the content")
    written = {
        "operator": str(operator),
        "arguments": _to_json(list(arguments), recipe_of),
        "options": _to_json(dict(options), recipe_of),
    }
    if len(text(written)) > _MOST:
        raise NoRecipe(f"`{operator}` computes too much with the content")
    return written


def function(name: str, arguments: Any, recipe_of: Callable[[torch.Tensor], Recipe]) -> Recipe:
    """The recipe of the result of a function of a backend. The arguments are those of `call`."""
    return {"function": name, "arguments": _to_json(list(arguments), recipe_of)}


def text(recipe: Recipe) -> str:
    """The canonical text of a recipe."""
    return json.dumps(recipe, sort_keys=True, separators=(",", ":"), allow_nan=False)


def weights_of(recipe: Any) -> Iterator[str]:
    """The names of the weights in a recipe. A name may occur several times."""
    if isinstance(recipe, list):
        for each in recipe:
            yield from weights_of(each)
    elif isinstance(recipe, dict):
        if isinstance(recipe.get("weight"), str):
            yield recipe["weight"]
        else:
            yield from weights_of([*recipe.values()])


@dataclass(frozen=True)
class Ingredients:
    """What recipes are computed from.

    Attributes:
        weights: The weights by name. Each may be read on access.
        functions: The functions of backends by name.
    """

    weights: Mapping[str, torch.Tensor]
    functions: Mapping[str, Callable[..., Any]]


def compute(recipe: Recipe, ingredients: Ingredients) -> Any:
    """The result of a recipe: a tensor, or None for a function that checks.

    Raises:
        ValueError: It is no recipe.
    """
    return _from_json(recipe, ingredients)


def _to_json(value: Any, recipe_of: Callable[[torch.Tensor], Recipe]) -> Any:
    if isinstance(value, torch.Tensor):
        return recipe_of(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, (list, tuple)):
        return [_to_json(each, recipe_of) for each in value]
    if isinstance(value, dict):
        return {"options": {name: _to_json(each, recipe_of) for name, each in value.items()}}
    for kind, values in _ENUMS.items():
        name = next((name for name, known in values.items() if type(known) is type(value) and known == value), None)
        if name is not None:
            return {kind: name}
    raise NoRecipe(f"a {type(value).__name__} meets the content")


def _from_json(value: Any, known: Ingredients) -> Any:
    if isinstance(value, list):
        return [_from_json(each, known) for each in value]
    if not isinstance(value, dict):
        return value
    if "weight" in value:
        return known.weights[value["weight"]]
    if "constant" in value:
        content = torch.frombuffer(bytearray.fromhex(value["constant"]) or bytearray(1), dtype=torch.uint8)
        shape, dtype = value["shape"], _ENUMS["dtype"][value["dtype"]]
        if 0 in shape:
            return torch.empty(shape, dtype=dtype)
        numbers = content.view(dtype)
        return numbers.view(shape) if len(numbers) > 1 else torch.full(shape, 0, dtype=dtype).copy_(numbers[0])
    if "operator" in value:
        if (packed := _packed(value, known)) is not None:
            return packed
        options = _from_json(value["options"], known)
        found = _operator(value["operator"])(*_from_json(value["arguments"], known), **options)
        return found[value["result"]] if "result" in value else found
    if "function" in value:
        return known.functions[value["function"]](*_from_json(value["arguments"], known))
    ((kind, content),) = value.items()
    if kind == "options":
        return {name: _from_json(each, known) for name, each in content.items()}
    return _ENUMS[kind][content]


def _packed(recipe: Recipe, known: Ingredients) -> torch.Tensor | None:
    """A scaled weight of a convolution with its channels last, in one pass: two operators would copy a copy. None if
    the recipe is another one."""
    scaled, options = recipe["arguments"][:1], recipe["options"]["options"]
    is_copy = recipe["operator"] == "aten._to_copy.default" and options.keys() <= _OF_COPY
    if not is_copy or options.get("memory_format") != {"memory_format": str(torch.channels_last)}:
        return None
    if not isinstance(scaled[0], dict) or scaled[0].get("operator") != "aten.mul.Tensor":
        return None
    one, other = _from_json(scaled[0]["arguments"], known)
    named = _from_json(recipe["options"], known)
    dtype, shape = torch.result_type(one, other), torch.broadcast_shapes(one.shape, other.shape)
    if len(shape) != 4 or named.get("dtype") not in (None, dtype):
        return _operator(recipe["operator"])(one * other, **named)
    return torch.mul(one, other, out=torch.empty(shape, dtype=dtype, memory_format=torch.channels_last))


def _only_computes(operator: torch._ops.OpOverload) -> bool:
    """Whether an operator changes no argument, draws no random numbers, and reads no file."""
    names_file = any(str(argument.type) == "str" for argument in operator._schema.arguments)
    return not (operator._schema.is_mutable or names_file or torch.Tag.nondeterministic_seeded in operator.tags)


def _operator(name: str) -> torch._ops.OpOverload:
    """The operator with a name such as `aten.permute.default`."""
    namespace, packet, overload = name.split(".")
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not _only_computes(found):
        raise ValueError(f"no recipe has `{name}`")
    return found
