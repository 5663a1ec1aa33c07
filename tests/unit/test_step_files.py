"""Which files of the driver the keys of steps hold."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from etbuild import backends
from etbuild.cli import VERBS
from etbuild.inputs import step_files
from etbuild.steps import pipeline
from tools.step_files import ACTION, OUTSIDE, PARTS, STEPS, TABLE, Source, backend_modules, files_of_checkout, table
from tools.step_files import step_files as tags_of

ALL_PARTS = {*PARTS, *backends.BACKENDS} - {OUTSIDE}


def test_the_table_is_that_of_the_imports() -> None:
    assert TABLE.read_text("utf-8") == table(), "run `python -m tools.step_files`"


class Docstrings(ast.NodeTransformer):
    """Removes the content of docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
        return node


def test_comments_and_docstrings_are_no_code_and_all_else_is() -> None:
    """In each file of the driver."""
    for name, source in files_of_checkout().items():
        if name.endswith(".py"):
            short = step_files.code_of(source.text())
            trees = [
                Docstrings().visit(ast.parse(text))
                for text in (source.text(), short.replace("\0", "\n").replace("\1", "#"))
            ]
            assert ast.dump(trees[0]) == ast.dump(trees[1]), name
    same = ['def f():\n    """One."""\n    return 1\n', '# A\ndef f():  # b\n    """Two\n\n    """\n\n    return 1\n']
    assert step_files.code_of(same[0]) == step_files.code_of(same[1])
    others = ['f("""a""")', 'f("""a\n""")', 'f("""a\n\n""")', 'f("""a # b\n""")', 'f("a # b")']
    others += ["f('\"')  # '", 'f(1)  # "', "f(2)", "f('#')", "f('# a')"]
    assert len({*map(step_files.code_of, others)}) == len(others)


def keys() -> dict[str, str]:
    """The digests that keys may hold: of each step, for programs without any part, with each part, and with all."""
    some = sorted({*PARTS, "coreml", "xnnpack"} - {OUTSIDE})
    programs = [[], *([part] for part in some), sorted(ALL_PARTS)]
    steps = sorted(STEPS)
    return {f"{step}/{', '.join(parts)}": step_files.digest_of([step], parts) for step in steps for parts in programs}


def test_an_edit_of_a_file_changes_the_keys_that_the_table_names_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of the driver is edited in a copy."""
    copy = tmp_path / "etbuild"
    shutil.copytree(TABLE.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(step_files, "_ROOT", copy)
    caches = (step_files._digest, step_files._file_digest)
    for cache in caches:
        cache.cache_clear()
    before, rows, without = keys(), step_files._steps(), 0
    for name in files_of_checkout():
        file = tmp_path / name
        content = file.read_bytes()
        file.write_bytes(content + b"\nEDITED = 1\n")
        for cache in caches:
            cache.cache_clear()
        after = keys()
        file.write_bytes(content)
        tags = {tag for tag in rows.get(name, ()) if tag.partition("/")[2] not in (ACTION, OUTSIDE)}
        without += not tags
        for key, digest in before.items():
            step, _, parts = key.partition("/")
            named = {step, *(f"{step}/{part}" for part in parts.split(", "))}
            assert (after[key] != digest) == bool(named & tags), (name, key)
    for cache in caches:
        cache.cache_clear()
    assert without > 40  # messages, and what starts and watches processes


def test_no_step_imports_what_its_key_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    others = ("etkit.testing.bundle", "etbuild.lower.lower_methods", "etbuild.export.recipe")
    for name in others:
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
    with step_files.only(["export"], ["xnnpack"]):
        for name in others:
            with pytest.raises(AssertionError, match=f"`{name}` is not in the key of export with xnnpack"):
                importlib.import_module(name)
        with step_files.for_later_steps():
            importlib.import_module(others[0])
        with pytest.raises(AssertionError), step_files.only(["lower"], []):
            importlib.import_module(others[2])
    assert not any(type(finder).__module__ == step_files.__name__ for finder in sys.meta_path)
    with step_files.only(["export"], ["recipe"]):
        importlib.import_module(others[2])


def tag_of_other(step: str, other: str) -> set[str]:
    """The tags of a module of the driver, with the text `other`, if the step `report` has the text `step`."""
    packages = dict.fromkeys(("__init__.py", "files/__init__.py", "steps/__init__.py"), '"""Documented."""')
    texts = {**packages, "patching.py": "import importlib", "steps/report.py": step, "files/other.py": other}
    files = {f"etbuild/{name}": Source(lambda text=text: text, text) for name, text in texts.items()}  # type: ignore[misc]
    return set(tags_of(files, {}).get("etbuild/files/other.py", ()))


IMPORT = "from etbuild.files.other import f\n"


@pytest.mark.parametrize(
    "step",
    [
        "with f(1):\n    pass",
        "with open('a') as file, f(file):\n    pass",
        "raise f('wrong')",
        "try:\n    pass\nexcept f:\n    pass",
    ],
)
def test_what_only_guards_a_step_is_in_no_key(step: str) -> None:
    assert tag_of_other(IMPORT + step, "import os") == {"report/outside"}


@pytest.mark.parametrize(
    "step",
    [
        "x = f(1)",
        "f(1)",
        "with f(1) as x:\n    pass",
        "with open(f(1)):\n    pass",
        "with open(f)(1):\n    pass",
        "def g(x: f):\n    pass",  # it may call methods of it
        "if f(1):\n    raise ValueError",
        "raise f('wrong')\nf(1)",
        "import etbuild.files.other\nwith f(1):\n    pass",
    ],
)
def test_what_gives_a_step_a_value_is_in_its_key(step: str) -> None:
    assert tag_of_other(IMPORT + step, "import os") == {"report"}


@pytest.mark.parametrize("other", ["import torch", "import importlib", "def g():\n    from etbuild import patching"])
def test_what_can_reach_the_values_of_a_step_does_not_only_guard_it(other: str) -> None:
    assert tag_of_other(f"{IMPORT}with f():\n    pass", other) == {"report"}


TYPES = """
from typing import TypedDict, final
Names = list[str] | None
__all__ = ["Named"]
@final
class Named(TypedDict):
    name: str
class More(Named, total=False):
    other: int
"""


def test_the_types_of_data_are_in_no_key() -> None:
    assert tag_of_other(f"{IMPORT}f(name='a')", TYPES) == {"report/outside"}


@pytest.mark.parametrize(
    "more",
    [
        "F = 1",
        "F = Names[0]",
        "F = max(1, 2)",
        "F = sizes['a']",
        "F = Names - list",
        "__all__ = f()",
        "class G(Named):\n    name: str = 'a'",
        "class G:\n    a: int",
        "class G(Exception):\n    a: int",
        "class G(Part):\n    a: int",
        "@f\nclass G(Named):\n    a: int",
    ],
)
def test_a_value_beside_the_types_of_data_is_in_the_key(more: str) -> None:
    assert tag_of_other(f"{IMPORT}f(name='a')", TYPES + more) == {"report"}


def test_schemas_are_in_the_key_of_planning_only() -> None:
    tags = {tag for name, of in step_files._steps().items() if "/schemas/" in name for tag in of}
    in_keys = {tag for tag in tags if tag.partition("/")[2] not in (ACTION, OUTSIDE)}
    assert {tag.partition("/")[0] for tag in in_keys} == {"plan"}


IMPORTED = """
import sys
from etbuild.inputs import step_files
from etbuild.steps import pipeline
with step_files.only([sys.argv[1]], []):
    __import__(f"etbuild.steps.{sys.argv[1]}")
"""


@pytest.mark.parametrize("step", [step.name for step in pipeline.STEPS])
def test_the_module_of_a_step_imports_nothing_that_its_key_lacks(step: str) -> None:
    """In a process that has imported no other step."""
    environment = {**os.environ, "PYTHONPATH": str(TABLE.parents[1])}
    done = subprocess.run([sys.executable, "-c", IMPORTED, step], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_only_tools_run_is_in_no_key() -> None:
    assert not [name for name in step_files._steps() if not name.startswith(("etbuild/", "etplugins/"))]
    assert "etbuild/version.py" not in step_files.of_steps(["export", "lower", "compare"], ALL_PARTS)


def test_lowering_makes_no_model_and_comparing_makes_one_and_neither_exports_nor_lowers() -> None:
    models = {f"etbuild/model/{name}.py" for name in ("module", "stored_parts", "weights_files")}
    exports = {f"etbuild/export/{name}.py" for name in ("archive", "core_operators", "export_methods")}
    lowering, comparing = (set(step_files.of_steps([step], ALL_PARTS)) for step in ("lower", "compare"))
    assert models | exports <= set(step_files.of_steps(["export"], ALL_PARTS))
    assert not (models | exports) & lowering
    assert models <= comparing
    assert not exports & set(step_files.of_steps(["compare"], {"checkpoints", "huggingface"}))
    assert not [name for name in comparing if name.startswith(("etbuild/lower/", "etbuild/emit/"))]


@pytest.mark.parametrize("backend", sorted(backend_modules()))
def test_the_comparison_can_lower_again_to_find_a_wrong_operator(backend: str) -> None:
    lowering = step_files.of_steps(["lower"], [backend])
    of_backend = {name for name in lowering if name.startswith("etbuild/backends/")}
    assert of_backend <= set(step_files.of_steps(["compare"], [backend, OUTSIDE]))


def top_level_imports(text: str) -> set[str]:
    """The modules of the driver that a module imports as soon as it is imported itself, and names in them."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return found


def driver_of_action(step: str) -> set[str]:
    """The files of the driver that the actions of a step run."""
    rules: dict[str, Any] = {}
    exec((TABLE.parents[1] / "steps.bzl").read_text("utf-8"), rules)
    return set(rules["files_of_step"](step_files._steps(), step))


@pytest.mark.parametrize("step", STEPS)
def test_the_driver_of_an_action_tells_what_it_can_do(step: str, tmp_path: Path) -> None:
    """Somebody may start it from bazel-bin by hand."""
    driver = driver_of_action(step)
    for name in driver:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TABLE.parents[1] / name, tmp_path / name)

    def say(*arguments: str, expect: int) -> str:
        command = [sys.executable, "-S", "-s", "-P", str(tmp_path / "etbuild/__main__.py"), *arguments]
        done = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    assert say("--help", expect=0).startswith("usage: etbuild ")
    assert "Traceback" not in say(expect=2)
    here = {verb for verb in VERBS if f"etbuild/cli/{verb}.py" in driver}
    assert step in here
    for verb in {"validate", "export", "build", step}:
        if verb in here:
            assert say(verb, "--help", expect=0).startswith(f"usage: etbuild {verb} ")
        else:
            assert say(verb, "--help", expect=2).startswith(f"error: there is no verb `{verb}`\n")


@pytest.mark.parametrize("step", STEPS)
def test_the_driver_of_an_action_has_what_its_modules_import(step: str) -> None:
    files = files_of_checkout()
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in files}
    driver = driver_of_action(step)
    missing = {
        (name, module)
        for name in driver
        if name.endswith(".py") and name in files
        for module in top_level_imports(files[name].text()) & modules.keys()
        if modules[module] not in driver
    }
    assert missing == set()
