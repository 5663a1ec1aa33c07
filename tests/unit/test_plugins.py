"""Plug-ins: what their files say is what is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from etbuild import plugins
from etbuild.errors import InputError
from etbuild.plugins import Plugin

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
        ("{", "not JSON: Expecting property name"),
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
