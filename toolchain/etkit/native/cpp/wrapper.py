"""Writes a C++ class for a program, with a method for each of its methods.

Dtypes, ranks and static shapes are types, so that a wrong argument does not compile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.errors import InputError

if TYPE_CHECKING:
    from etbuild.results import Index, Report, ReportedMethod, Value

_TYPES = {
    "bool": "bool",
    "uint8": "uint8_t",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float16": "executorch::aten::Half",
    "bfloat16": "executorch::aten::BFloat16",
    "float32": "float",
    "float64": "double",
}
_LITERALS = {"int": "int64_t", "double": "double", "bool": "bool"}

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete
    do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
_RESERVED = frozenset({*_KEYWORDS.split(), "kName", "load", "module", "program_"})
_NO_NAMESPACES = _RESERVED | {"etbuild", "executorch", "linux", "main", "std", "torch", "unix"}
"""Some compilers define `linux` and `unix` as numbers."""


def class_name(program: str) -> str:
    """The name of a program's class: `TinyLm` for `tiny_lm`. Characters other than letters and digits end a word."""
    words = re.findall(r"[A-Za-z0-9]+", program)
    name = "".join(word[0].upper() + word[1:] for word in words)
    return f"Program{name}" if not name or name[0].isdigit() else name


def file_stem(program: str) -> str:
    """The name of a program's header and namespace: `net_ios` for `net.ios`."""
    stem = re.sub(r"[^A-Za-z0-9]+", "_", program).strip("_")
    return f"program_{stem}".rstrip("_") if not stem or stem[0].isdigit() or stem in _NO_NAMESPACES else stem


def header(index: Index, report: Report, namespace: str | None = None) -> str:
    """The content of `NAME.h`.

    Args:
        index: The program's index.
        report: Its report.
        namespace: The namespace of the class, such as `app::models`. Default: the program's name.

    Raises:
        InputError: C++ cannot name a method, or a method takes or returns something that no C++ type stands for.
    """
    name = index["name"]
    files = [each for kind in ("program", "named_data") for each in index["artifacts"] if each["kind"] == kind]
    listed = ", ".join(f"{{{literal(each['file'])}, {each['size']}u}}" for each in files)
    methods = report["methods"]
    bodies = [_method(method, methods[method]) for method in sorted(methods)]
    constants = [text for key, value in sorted(report["constant_methods"].items()) for text in _constant(key, value)]
    scales = [*_scales(index)]
    _check_members(name, [*methods, *report["constant_methods"], *(member for member, _ in scales)])
    constants += [text for _, text in scales]
    place = namespace_of(name, namespace)
    shared = str(bool(index["inputs"]["plan"].get("share_mutable_buffers"))).lower()
    own = class_name(name)
    loaded = ", ".join(literal(method) for method in sorted(methods))
    lines = [
        f"// The program {literal(name)}, as `etbuild cpp` has written it. Do not edit it.",
        "#pragma once",
        "",
        Path(__file__).with_name("typed_program.h").read_text("utf-8"),
        f"namespace {place} {{",
        "",
        f"class {own} {{",
        " public:",
        f"  static constexpr const char* kName = {literal(name)};",
        "",
        *constants,
        f"  // Its files are in `directory`: {', '.join(literal(each['file']) for each in files)}.",
        f"  explicit {own}(const std::string& directory) : program_(directory, {{{listed}}}, {shared}) {{}}",
        f"  explicit {own}(const etbuild::Embedded& embedded) : program_(embedded, {shared}) {{}}",
        "",
        "  // Loads the program and all methods. Call it first: it says what is missing. A backend may crash if",
        "  // a method is called and its data is not there.",
        f"  etbuild::Error load() {{ return program_.load({{{loaded}}}); }}",
        "",
        *bodies,
        "  executorch::extension::Module& module() { return program_.module(); }",
        "",
        " private:",
        "  etbuild::Program program_;",
        "};",
        "",
        f"}} // namespace {place}",
        "",
    ]
    return "\n".join(lines)


def namespace_of(program: str, given: str | None) -> str:
    """The namespace of a program's class: the given one, or the program's name.

    Raises:
        InputError: The given one is not a namespace.
    """
    place = file_stem(program) if given is None else given
    words = place.split("::")
    if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word) and word not in _NO_NAMESPACES for word in words):
        raise InputError.of(f"--namespace {place}: not a namespace of C++")
    return place


def _member(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError.of(f"C++ cannot name the method `{name}`", "give it a name of ASCII letters, digits and `_`")
    return f"{name}_" if name in _RESERVED else name


def _check_members(program: str, names: Sequence[str]) -> None:
    members: dict[str, str] = {class_name(program): "the class"}
    for name in names:
        member = _member(name)
        if member in members:
            hint = "give one of them another name in the manifest"
            raise InputError.of(f"C++ would have one name, `{member}`, for `{name}` and {members[member]}", hint)
        members[member] = f"`{name}`"


def _method(name: str, method: ReportedMethod) -> str:
    """The member function of a method."""
    parameters, arguments = [], [f"program_.module(), {literal(name)}"]
    for number, value in enumerate(method["inputs"]):
        if _is_tensor(value):
            parameters.append(f"const {_input_type(name, value)}& input{number}")
            arguments.append(f"input{number}")
        else:
            arguments.append(f"etbuild::EValue({_value(name, value)})")
    outputs = ", ".join(_output_type(name, value) for value in method["outputs"])
    shown = f"({', '.join(map(_shown, method['inputs']))}) -> ({', '.join(map(_shown, method['outputs']))})"
    result = f"etbuild::Result<std::tuple<{outputs}>>"
    call = f"etbuild::call<{outputs}>({', '.join(arguments)})"
    return f"  // {shown}\n  {result} {_member(name)}({', '.join(parameters)}) {{\n    return {call};\n  }}\n"


def _scales(index: Index) -> Iterator[tuple[str, str]]:
    """Yields the members for the scales and zero points of methods, each with its name."""
    for method, (inputs, outputs) in sorted(index.get("edges", {}).items()):
        for kind, edges in (("input", inputs), ("output", outputs)):
            for number, edge in enumerate(edges):
                if edge is not None:
                    name, scale = f"{_member(method)}_{kind}{number}", json.dumps(edge["scale"])
                    said = f"  // An integer stands for ({kind}{number} - {name}_zero_point) * {name}_scale.\n"
                    yield f"{name}_scale", f"{said}  static constexpr double {name}_scale = {scale};"
                    zero_point = f"  static constexpr int32_t {name}_zero_point = {edge['zero_point']};\n"
                    yield f"{name}_zero_point", zero_point


def _is_tensor(value: Value) -> bool:
    return "dtype" in value


def _element(method: str, value: Mapping[str, Any]) -> str:
    if value["dtype"] not in _TYPES:
        known = ", ".join(_TYPES)
        raise InputError.of(f"`{method}` has a tensor of {value['dtype']}, which has no type in C++", f"known: {known}")
    return _TYPES[value["dtype"]]


def _input_type(method: str, value: Mapping[str, Any]) -> str:
    kind = "DynamicInput" if value["dynamic"] else "Input"
    return f"etbuild::{kind}<{', '.join([_element(method, value), *map(str, value['shape'])])}>"


def _output_type(method: str, value: Mapping[str, Any]) -> str:
    if not _is_tensor(value):  # type: ignore[arg-type]
        hint = "return tensors only, or call the method through `module()`"
        raise InputError.of(f"`{method}` returns {_shown(value)}, which is not a tensor", hint)
    return f"etbuild::Output<{_element(method, value)}, {len(value['shape'])}>"


def _value(method: str, value: Mapping[str, Any]) -> str:
    """The expression for an argument that is not a tensor. It is a constant of the program."""
    if value["type"] == "null":
        return ""
    if value["type"] not in _LITERALS:
        hint = "call the method through `module()` of another wrapper"
        raise InputError.of(f"`{method}` takes {_shown(value)}, which has no type in C++", hint)
    return f"static_cast<{_LITERALS[value['type']]}>({json.dumps(value['value'])})"


def _shown(value: Mapping[str, Any]) -> str:
    """A value in a comment: `float32[1, <=128]`."""
    if "dtype" not in value:
        return json.dumps(value["value"]) if value["type"] in _LITERALS else str(value["type"])
    sizes = ", ".join(f"<={size}" if value["dynamic"] else str(size) for size in value["shape"])
    return f"{value['dtype']}[{sizes}]"


def _constant(name: str, value: object) -> Sequence[str]:
    """The member of a constant method that returns a number."""
    kind = {bool: "bool", int: "int64_t", float: "double"}.get(type(value))
    # C++ has no literal for the smallest number: the sign does not belong to it.
    text = "-9223372036854775807 - 1" if value == -(2**63) else json.dumps(value)
    return [f"  static constexpr {kind} {_member(name)} = {text};", ""] if kind else []


def literal(text: str) -> str:
    """A string of C++ in ASCII."""
    escaped = "".join(
        char if 32 <= ord(char) < 127 and char not in '"\\?' else "".join(f"\\{byte:03o}" for byte in char.encode())
        for char in text
    )
    return f'"{escaped}"'
