"""Refuses strings in a `.pt2` that PyTorch would run as code.

`torch.export` looks up operators by any dotted name, and passes expressions to `sympy.sympify`, which evaluates them as
Python code. It imports modules that are named in trees of results, and writes names into Python source that it runs.
This module accepts only strings of the kinds that `torch.export` writes itself. The forms of the data are those of
`torch._export.serde.schema`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.union import _Union
from torch.utils import _pytree as pytree

from etbuild.export import custom_ops


class UnsafePt2(Exception):
    """The file is refused. Users see the message as the reason."""


def check(form: Any, value: Any, field: str = "") -> None:
    """Checks that JSON data has a form of the schema, and holds no string that PyTorch would run.

    Args:
        form: A class of the schema, or the type of a field in one.
        value: The data.
        field: The name of the field that holds it.

    Raises:
        UnsafePt2: The data has another form, or holds such a string.
    """
    origin, arguments = typing.get_origin(form), typing.get_args(form)
    if origin in (typing.Union, types.UnionType):
        if value is not None:
            check(arguments[0], value, field)
    elif origin is list:
        for item in _of_type(list, value, field):
            check(arguments[0], item, field)
    elif origin is dict:
        for key, item in _of_type(dict, value, field).items():
            _KEYS.get(field, _path)(key)
            check(arguments[1], item, f"{field}.{key}" if field == "metadata" else field)
    elif dataclasses.is_dataclass(form):
        _check_object(form, _of_type(dict, value, field))
    else:
        _check_plain(form, value, field)


def _check_object(form: Any, value: dict[str, object]) -> None:
    if form is schema.CustomObjArgument:
        raise UnsafePt2("it holds an object of its own class: reading it would run code from the file")
    if issubclass(form, _Union) and len(value) != 1:
        raise UnsafePt2(f"it has {len(value)} kinds of {form.__name__} where one belongs")
    fields = _fields(form)
    for name, item in value.items():
        if name in fields:
            check(fields[name], item, name)
        elif issubclass(form, _Union):
            raise UnsafePt2(f"it has a {form.__name__} of the unknown kind {_shown(name)}")


@functools.cache
def _fields(form: Any) -> dict[str, object]:
    return typing.get_type_hints(form, globalns=vars(schema))


def _check_plain(form: Any, value: Any, field: str) -> None:
    if form is str:
        rule = _free if field.startswith("metadata.") else _identifier
        _STRINGS.get(field, rule)(_of_type(str, value, field))
    elif form is float:
        if not (type(value) in (int, float) or value in ("Infinity", "-Infinity", "NaN")):
            raise UnsafePt2(f"`{field}` is not a number")
    elif form is bool:
        _of_type(bool, value, field)
    elif form is int or issubclass(form, Enum):
        _of_type(int, value, field)
    else:  # a new form of an untested release of PyTorch: a bug in this module
        raise TypeError(f"unknown form {form} of `{field}`")


def _of_type(kind: type, value: Any, field: str) -> Any:
    if type(value) is not kind:
        raise UnsafePt2(f"`{field or 'it'}` is not of type {kind.__name__}")
    return value


def _shown(text: str) -> str:
    """A string of the file for a message: one short line without control characters."""
    return "`" + ascii(text if len(text) <= 80 else f"{text[:77]}...")[1:-1] + "`"


def _free(text: str) -> None:
    """Accepts any text, for fields that people read and for arguments of operators."""


def _identifier(text: str) -> None:
    """Checks a name that `torch.fx` writes into Python source."""
    if text and not text.isidentifier():
        raise UnsafePt2(f"the name {_shown(text)} is not an identifier: it would run as Python code")


def _path(text: str) -> None:
    """Checks a dotted name, such as that of a weight. `torch.fx` writes it into strings and comments of source code."""
    if not text.isprintable() or re.search(r"[\"'`\\{}]", text):
        raise UnsafePt2(f"the name {_shown(text)} has characters that names of weights and modules cannot have")


def _symbol(text: str) -> None:
    """Checks the name of a size. Its number is limited, because PyTorch counts up to it."""
    if not re.fullmatch(r"[A-Za-z_]{1,20}\d{1,5}", text):
        raise UnsafePt2(f"{_shown(text)} is not the name of a size")


def _dimension(text: str) -> None:
    """Checks a dimension with a range: it must be the name of a size, not an expression over one."""
    if not re.fullmatch(r"\w+", text) and re.fullmatch(r"[\w +*/()-]+", text, re.ASCII):
        hint = "cannot be lowered by ExecuTorch; give it a `Dim` of its own"
        raise UnsafePt2(f"{_shown(text)}: a dimension that is computed from another one {hint}")
    _symbol(text)


def _verifier(text: str) -> None:
    """Checks the dialect of a graph: a build cannot start from edge programs or other dialects."""
    if text not in ("TRAINING", "ATEN"):
        raise UnsafePt2(f"its dialect is {_shown(text)}, not that of torch.export.export")


_HIGHER_ORDER = {
    *("cond", "while_loop", "map_impl", "scan", "associative_scan", "out_dtype", "strict_mode"),
    *("wrap_with_set_grad_enabled", "wrap_with_autocast", "auto_functionalized", "auto_functionalized_v2"),
}
# Arithmetic on sizes: the operators in `torch._export.serde.serialize._SYM_OPS`.
_ARITHMETIC = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|lshift|rshift|getitem)"
    r"|math\.(trunc|ceil|floor|sqrt)|torch\.sym_(not|int|float|ite|max|min|sqrt|sum)|torch\._sym_sqrt"
)
_OPERATOR = re.compile(r"torch\.ops\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


def _operator(text: str) -> None:
    if _ARITHMETIC.fullmatch(text):
        return
    name = text.removeprefix("torch.ops.higher_order.")
    if name != text and name in _HIGHER_ORDER:
        return
    if text.startswith("torch._functorch.predispatch."):
        raise UnsafePt2(f"the graph calls {_shown(text)}: `associative_scan` and `torch.func` are not supported")
    parts = _OPERATOR.fullmatch(text)
    if parts is None or name != text:
        raise UnsafePt2(f"the graph calls {_shown(text)}, which is not an operator")
    operator: Any = torch.ops
    for part in parts.groups():
        operator = getattr(operator, part, None)
    if operator is None:
        return  # such an operator does not exist, and PyTorch reports it
    if not isinstance(operator, torch._ops.OpOverload):
        raise UnsafePt2(f"the graph calls {_shown(text)}, which is not an operator")
    if parts[1] in _NO_MODELS:
        raise UnsafePt2(f"the graph calls {_shown(text)}: a model cannot use operators of `{parts[1]}`")
    if not custom_ops.is_declared(operator.name()) and any(map(_names_file, operator._schema.arguments)):
        raise UnsafePt2(f"the graph calls {_shown(text)}, which opens files")


_NO_MODELS = ("debugprims", "profiler", "inductor", "image", "io", "c10d", "_c10d_functional")  # files, processes


def _names_file(argument: Any) -> bool:
    return str(argument.type) == "str" and ("file" in argument.name or "path" in argument.name)


def _sources(text: str) -> None:
    """Checks a `source_fn_stack`, which says where a node comes from: `NAME,FUNCTION;NAME,FUNCTION`.

    PyTorch looks up the functions but does not call them.
    """
    for source in text.split(";"):
        name = source.partition(",")[2]
        if name.startswith(("torch", "_operator", "math", "#")) and ("__" in name or not re.fullmatch(r"[\w.]+", name)):
            raise UnsafePt2(f"{_shown(name)} is not the name of a function")


_PLAIN_TREES = (
    *(None, "builtins.tuple", "builtins.list", "builtins.dict", "builtins.slice", "torch.Size"),
    *("collections.OrderedDict", "collections.namedtuple", "collections.deque"),
)


def _tree(text: str) -> None:
    """Checks a tree of inputs or results. For some kinds of nodes, PyTorch imports the module that they name."""
    nodes = [_json(text)[1]]
    while nodes:
        node = _of_type(dict, nodes.pop(), "tree")
        kind, context = node.get("type"), node.get("context")
        owner = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(kind) if isinstance(kind, str) else None
        foreign = owner is not None and owner.__module__.partition(".")[0] not in ("torch", "builtins", "collections")
        if kind not in _PLAIN_TREES and not foreign:
            raise UnsafePt2(f"inputs or results are of the kind {_shown(str(kind))}, which cannot be read")
        if "__enum__" in json.dumps(context):
            raise UnsafePt2("inputs or results name an enumeration, which PyTorch would import")
        nodes += _of_type(list, node.get("children_spec"), "children_spec")


def _input_tree(text: str) -> None:
    """Checks a tree of inputs. `torch.fx` writes its keywords into Python source."""
    _tree(text)
    children = _json(text)[1]["children_spec"]
    if len(children) == 2 and children[1]["type"] == "builtins.dict":
        for keyword in _json(children[1]["context"]):
            _identifier(_of_type(str, keyword, "keyword"))


def _json(text: str) -> list[Any]:
    try:
        content = json.loads(text)
    except (TypeError, ValueError):
        content = None
    return _of_type(list, content, "a tree of inputs or results")  # type: ignore[no-any-return]


_CALLS = {
    *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Mod", "Abs", "Max", "Min", "floor", "ceiling"),
    *("Equality", "Unequality", "GreaterThan", "LessThan", "StrictGreaterThan", "StrictLessThan", "Eq", "Ne"),
    *("And", "Or", "Not", "Piecewise", "ExprCondPair", "sqrt", "FloorDiv", "ModularIndexing", "Where", "PythonMod"),
    *("CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv"),
    *("IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal"),
    *("ToFloat", "Identity", "OpaqueUnaryFn_sqrt", "BitwiseFn_bitwise_and", "BitwiseFn_bitwise_or"),
}
_NAMES = {"true", "false", "True", "False", "oo", "int_oo"}
_ASSUMPTIONS = {"integer", "positive", "nonnegative", "real", "finite", "nonzero", "zero", "negative", "precision"}
_POWERS = {"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"}
_MAX_POWER = 4096  # the largest product of nested powers: enough for any size, and fast to compute


def _expression(text: str) -> None:
    """Checks an expression over sizes in the form of `sympy.srepr`: constructor calls, numbers, names of symbols."""
    refused = UnsafePt2(f"{_shown(text)} is not an expression over sizes: it would run as Python code")
    if len(text) > 20_000 or not re.fullmatch(r"[\w(),=.' -]*", text, re.ASCII):
        raise refused
    try:
        _check_expression(ast.parse(text, mode="eval").body, 1)
    except (_NoExpression, SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused from None


class _NoExpression(Exception):
    pass


def _check_expression(node: ast.AST, power: int) -> None:
    """Checks a part of an expression. `power` is the product of the powers to which the part is raised.

    Raises:
        _NoExpression: The part has something other than calls of known constructors, numbers and names, or the product
            of powers is too large.
    """
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number) if abs(number) < 2**64:
            pass
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as operand):
            _check_expression(operand, power)
        case ast.Name(id=name) if name in _NAMES:
            pass
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            _symbol(name)
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(number))]):
            if abs(float(number)) == float("inf"):
                raise _NoExpression
        case ast.Call(func=ast.Name(id=name), args=parts) if name in _CALLS:
            power *= _power(parts) if name in _POWERS else 1
            if power > _MAX_POWER:
                raise _NoExpression
            for part in parts:
                _check_expression(part, power)
        case _:
            raise _NoExpression
    for keyword in getattr(node, "keywords", []):
        if keyword.arg not in _ASSUMPTIONS:
            raise _NoExpression
        _check_expression(keyword.value, power)


def _power(parts: list[ast.expr]) -> int:
    """The exponent of a power: 1 for a symbol, which has no value yet; above the limit if it cannot be computed."""
    match parts:
        case [_, ast.Call(func=ast.Name(id="Symbol"))]:
            return 1
        case [_, ast.Call(func=ast.Name(id="Integer"), args=[exponent])]:
            value = ast.literal_eval(exponent)
            return max(1, abs(value)) if isinstance(value, int) else _MAX_POWER + 1
        case [_, ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(number))])]:
            value = abs(float(number))
            return max(1, math.ceil(value)) if value <= _MAX_POWER else _MAX_POWER + 1
        case [_, ast.Call(func=ast.Name(id="Rational"), args=[ast.Constant(value=1), ast.Constant(value=int())])]:
            return 1
    return _MAX_POWER + 1


_STRINGS: dict[str, Callable[[str], None]] = {
    "expr_str": _expression,
    "target": _operator,
    "as_operator": _operator,
    "in_spec": _input_tree,
    "out_spec": _tree,
    "verifiers": _verifier,
    "metadata.source_fn_stack": _sources,
    "as_string": _free,
    "as_strings": _free,
    "torch_version": _free,
    **dict.fromkeys(("fqn", "path_name", "parameter_name", "buffer_name", "tensor_constant_name"), _path),
}
"""The check of a field with strings, by the field's name. Other fields have names of nodes and arguments:
`_identifier`."""

_KEYS: dict[str, Callable[[str], None]] = {
    "range_constraints": _dimension,
    "metadata": _free,
    **dict.fromkeys(("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values"), _identifier),
}
"""The check of the keys of a field with a mapping, by the field's name. Other mappings have dotted names: `_path`."""
