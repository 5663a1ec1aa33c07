"""Schemas of backends, their tables in the documentation, and the cost of looking up backends."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from etbuild import backends, json_schema
from etbuild.backends.needs import package, python, sdk

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/backends.md"
SCHEMAS = sorted(
    path
    for place in ("schemas", "toolchain/etplugins/*")
    for kind in ("backend", "quantizer")
    for path in ROOT.glob(f"{place}/{kind}-*.json")
)


def leaves(properties: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = []
    for name, option in properties.items():
        found.append((f"{path}{name}", option))
        found += leaves(option.get("properties", {}), f"{path}{name}.")
    return found


def test_each_backend_has_a_section_with_a_link_to_its_options() -> None:
    sections = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", DOCUMENT.read_text("utf-8"), re.MULTILINE | re.DOTALL))
    assert sections.keys() == set(backends.BACKENDS)
    schemas = {path.name.partition(".")[0]: json.loads(path.read_text("utf-8")) for path in SCHEMAS}
    for name, section in sections.items():
        kinds = [kind for kind in ("backend", "quantizer") if schemas.get(f"{kind}-{name}", {}).get("properties")]
        links = re.findall(r"\(reference/backend-options/(\S+)\.md\)", section)
        shared = backends.BACKENDS[name].options_of
        assert links == ([name] if kinds else [shared] if shared else []), name


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name.partition(".")[0])
def test_every_option_has_a_description_and_examples_that_it_takes(path: Path) -> None:
    content = json.loads(path.read_text("utf-8"))
    Draft202012Validator.check_schema(content)
    for name, option in leaves(content["properties"]):
        assert option["description"].endswith("."), name
        assert option["examples"], name
        for example in [*option["examples"], *([option["default"]] if "default" in option else [])]:
            assert not list(Draft202012Validator(option).iter_errors(example)), (name, example)


def patterns(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for item in node for found in patterns(item)]
    if not isinstance(node, dict):
        return []
    own = [node] if isinstance(node.get("pattern"), str) else []
    return own + [found for value in node.values() for found in patterns(value)]


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name.partition(".")[0])
def test_every_pattern_can_be_put_into_words(path: Path) -> None:
    for node in patterns(json.loads(path.read_text("utf-8"))):
        assert "description" in node, node["pattern"]


def test_every_schema_belongs_to_a_backend() -> None:
    names = {path.name.removesuffix(".schema.json") for path in SCHEMAS}
    quantizers = {f"quantizer-{name}" for name, one in backends.BACKENDS.items() if one.has_quantizer}
    own = {f"backend-{name}" for name, one in backends.BACKENDS.items() if one.options_of is None}
    assert names == own | quantizers


def test_no_other_module_compares_the_name_of_a_backend() -> None:
    names = {*backends.BACKENDS, *(one.delegate_id for one in backends.BACKENDS.values())} - {None}
    driver = ROOT / "toolchain/etbuild"
    found = [
        f"{path.relative_to(driver)}:{node.lineno} {node.value}"
        for path in sorted(driver.rglob("*.py"))
        if path.relative_to(driver).parts[0] != "backends" or path.name in ("__init__.py", "call_slots.py")
        for node in compared(ast.parse(path.read_text("utf-8")))
        if node.value in names
    ]
    assert found == []


def compared(tree: ast.AST) -> Iterator[ast.Constant]:
    """Returns the constants in comparisons and look-ups, except in the registry of classes."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    registry = [node.value for node in assigned if ast.unparse(node.targets[0]) == "_CLASSES"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts: list[Any] = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = [] if node in registry else node.keys
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        else:
            continue
        for part in filter(None, parts):
            yield from (each for each in ast.walk(part) if isinstance(each, ast.Constant))


def test_the_documents_have_all_that_a_backend_may_say() -> None:
    attributes = set(inspect.get_annotations(backends.Backend))
    methods = {name for name, member in vars(backends.Backend).items() if callable(member) and name[0] != "_"}
    section = (ROOT / "docs/custom-backend.md").read_text("utf-8")
    first_cells = " ".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))
    assert set(re.findall(r"`(\w+)", first_cells)) == attributes | methods
    assert set(re.findall(r"^    (\w+): ", inspect.getdoc(backends.Backend) or "", re.MULTILINE)) == attributes


def test_a_delegate_is_of_the_backend_that_has_its_name() -> None:
    for name, backend in backends.BACKENDS.items():
        if backend.delegate_id is not None:
            assert backends.of_delegate(backend.delegate_id, [name]) is backend
            assert backends.of_delegate(backend.delegate_id, [*{"portable", "cadence"} - {name}]) is None
            # A partitioner of the sources may be any of the driver's. Two compile for Vulkan's delegate.
            assert backends.of_delegate(backend.delegate_id, ["custom"]) is backend or name == "webgpu"
    assert backends.of_delegate("UnknownBackend", ["xnnpack"]) is None
    ours = ["xnnpack", "coreml"]
    assert [one for one in ("XnnpackBackend", "CoreMLBackend") if backends.named_data_is_weights(one, ours)] == [
        "XnnpackBackend"
    ]


def test_a_quantizer_may_be_named_where_a_backend_has_one() -> None:
    assert backends.check_quantizer("xnnpack", {"per_channel": True}, ()) == []
    [problem] = backends.check_quantizer("native", {}, ("here",))
    assert problem.message == "the backend `native` has no quantizer"


def test_an_sdk_has_to_be_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need = sdk("AN_SDK_ROOT", "an SDK", "lib/compiler.so", "get it")
    monkeypatch.delenv("AN_SDK_ROOT", raising=False)
    assert not need.there()
    monkeypatch.setenv("AN_SDK_ROOT", str(tmp_path))
    assert not need.there()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/compiler.so").touch()
    assert need.there()


def test_a_package_is_looked_for_and_not_imported() -> None:
    code = (
        "import sys; from etbuild.backends.needs import package; "
        "print(package('executorch.backends.mlx')(), package('executorch.backends.no_such')(), package('no_such')(), "
        "'executorch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False", "False"]
    assert package("jsonschema")()


def test_a_later_python_is_accepted() -> None:
    assert python(sys.version_info[:2]).there()
    assert not python((sys.version_info[0], sys.version_info[1] + 1)).there()


def test_one_schema_is_read_by_path_as_well(tmp_path: Path) -> None:
    path = tmp_path / "options.schema.json"
    path.write_text('{"type": "object", "properties": {"speed": {"type": "integer"}}, "additionalProperties": false}')
    [problem] = json_schema.problems(path, {"sped": 1}, ("methods", "f"))
    assert problem.hint is not None
    assert "did you mean `speed`?" in problem.hint


def test_the_module_of_a_backend_is_imported_when_it_is_needed() -> None:
    code = (
        "import sys; from etbuild import backends; backends.check('xnnpack', {}, ()); "
        "print(sorted(name for name in sys.modules if name.startswith('etbuild.backends.') and name.count('.') == 2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = ast.literal_eval(done.stdout)
    assert "etbuild.backends.xnnpack" in imported
    assert len(imported) < 6, imported
