"""Plug-ins: what their files say is what is there."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etbuild import plugins
from etbuild.errors import InputError
from etbuild.plugins import Plugin
from etplugins.build_rules import handed_plugins

PLUGINS = plugins.plugins().values()
EACH = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.package)


@EACH
def test_a_plugin_names_the_plugins_that_it_imports(plugin: Plugin) -> None:
    text = "\n".join(file.read_text("utf-8") for file in plugin.directory.rglob("*.py"))
    imported = {*re.findall(r"^\s*from ((?:etkit|etplugins)\.\w+)", text, re.MULTILINE)}
    assert sorted(imported & plugins.plugins().keys() - {plugin.package}) == [*plugin.uses]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read the file of a plug-in: Expecting property name"),
        ("[]", "expected an object with `description` and `provides`"),
        ('{"description": "", "provides": {}, "imports": "h5py"}', "`imports` is no list"),
        ('{"description": "", "provides": {}, "use": []}', "unknown key `use`.*did you mean `uses`"),
    ],
)
def test_a_wrong_file_of_a_plugin_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / plugins.FILE
    file.write_text(content)
    with pytest.raises(InputError, match=f"(?s){file}: {message}"):
        plugins._read(file, "etplugins.new")


STEPS_OF_CORE = {"switch": "export", "workaround": "export", "method_watch": "export", "lowering": "lower"}
"""Groups that the core asks for in each program, with a step in which it does."""


@EACH
def test_a_plugin_that_each_program_runs_says_so(plugin: Plugin) -> None:
    steps = {STEPS_OF_CORE[group] for group in plugin.provides if group in STEPS_OF_CORE}
    assert steps <= {*plugin.always} <= {"plan", "export", "lower", "compare", "report"}


@EACH
def test_a_plugin_has_what_it_provides(plugin: Plugin) -> None:
    for place in (place for group in plugin.provides.values() for place in group.values()):
        module, _, name = place.partition(":")
        file = plugins.ROOT.joinpath(*module.split(".")).with_suffix(".py")
        tree = ast.parse(file.read_text("utf-8"))
        assert module.startswith(f"{plugin.package}.")
        assigned = [node.id for statement in tree.body for node in ast.walk(statement) if isinstance(node, ast.Name)]
        assert not name or name in {*assigned, *(getattr(statement, "name", None) for statement in tree.body)}, place


@pytest.mark.parametrize("plugin", [each for each in PLUGINS if each.help], ids=lambda plugin: plugin.package)
def test_a_plugin_with_verbs_for_people_provides_each_of_them(plugin: Plugin) -> None:
    verbs = {**plugin.provides["verb"], **plugin.provides.get("hidden_verb", {})}
    names = {path.stem for path in plugin.directory.glob("verbs/*.py")} - {"__init__"}
    assert verbs == {name.replace("_", "-"): f"{plugin.package}.verbs.{name}" for name in names}
    assert {verb for section in plugin.help.values() for verb in section} <= plugin.provides["verb"].keys()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a plug-in that is not beside the driver, as actions have it."""
    monkeypatch.setattr(plugins, "_given", {})
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for module in ("etplugins.own", "etplugins.own.backend"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    provides = {"backend": {"own": "etplugins.own.backend:NAME"}}
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "plugin.json").write_text(json.dumps({"description": "Own.", "provides": provides}))
    (directory / "__init__.py").touch()
    (directory / "backend.py").write_text("NAME = 'own'\n")
    yield directory
    monkeypatch.undo()  # also what a test has replaced: what is found next is remembered
    plugins.add([])  # forgets what was there
    plugins.plugins()


def test_a_plugin_elsewhere_is_found_where_it_is_given(elsewhere: Path) -> None:
    with pytest.raises(InputError, match="no plug-in provides the backend `own`"):
        plugins.load("backend", "own")
    plugins.add([elsewhere])
    assert plugins.load("backend", "own") == "own"
    assert plugins.plugins()["etplugins.own"].directory == elsewhere
    assert f"{elsewhere}/" in plugins.driver()
    (elsewhere / "__init__.py").unlink()
    with pytest.raises(InputError) as raised:
        plugins.load("backend", "own")
    [problem] = raised.value.problems
    assert problem.message == "the program needs the plug-in `own`, and its target does not name it"
    assert problem.hint == 'add "own" to `plugins` in the BUILD file (`etbuild targets` does it)'


def test_targets_name_the_plugins_that_only_some_programs_use() -> None:
    named = {plugin.name for plugin in PLUGINS if plugin.is_named}
    assert {"lora", "quantize", "transformers", "vulkan"} <= named
    always = {plugin.name for plugin in PLUGINS if plugin.always}
    assert named.isdisjoint({"authoring", "comparison", "guard", "model_tests", "tokenizer", "worker", *always})


def test_planning_hands_plugins_on(elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "__pycache__").mkdir()
    (elsewhere / "__pycache__/backend.pyc").touch()
    (elsewhere / "below").mkdir()
    (elsewhere / "below/data.json").write_text("{}")
    elsewhere.chmod(0o555)  # as outputs of Bazel are
    plugins.add([elsewhere])
    for names, expected in (([], []), (["lora"], []), (["own"], ["own"]), (["*"], ["own"])):
        directory = tmp_path / "-".join(["handed", *names])
        directory.mkdir()
        assert handed_plugins.copy(names, directory) == expected
        assert plugins.handed(directory) == [directory / name for name in expected]
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert files == {
        "plugins.txt",
        *(f"own/{name}" for name in ("__init__.py", "backend.py", "plugin.json", "below/data.json")),
    }
    assert handed_plugins.not_read() == []  # only the plug-in itself says what it provides
    monkeypatch.setattr(plugins, "ROOT", tmp_path / "driver")
    (tmp_path / "driver/etplugins/own").mkdir(parents=True)
    shutil.copy(elsewhere / "plugin.json", tmp_path / "driver/etplugins/own")
    plugins.add([])
    assert handed_plugins.not_read() == [elsewhere]
    assert plugins.load("backend", "own") == "own"
    assert handed_plugins.not_read() == []
    (tmp_path / "driver/etplugins/own/plugin.json").write_text('{"description": "Of the driver.", "provides": {}}')
    plugins.add([])
    assert plugins.plugins()["etplugins.own"].provides == {}


def test_a_later_action_needs_the_list_of_what_was_handed_on(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        plugins.handed(tmp_path)
