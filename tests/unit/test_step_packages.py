"""Which of the driver's code the keys of steps hold."""

from __future__ import annotations

import ast
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etbuild import plugins
from etbuild.cli import VERBS
from etbuild.key import code
from etbuild.manifest.sections import Manifest, Method
from etbuild.plan.part import PluginKeys
from etbuild.plan.plan import from_manifest
from etbuild.plan.step_plans import LowerPlan
from etplugins.worker import warm_up
from tests.helpers.driver_edits import EDITS, Edit
from tests.helpers.drivers import TOOLCHAIN, driver_of_action, plugin_of_action, rules

DRIVER = TOOLCHAIN / "etbuild"
for_actions = runpy.run_path(str(TOOLCHAIN / "copy_driver.py"))["for_actions"]
STEPS = ("plan", "export", "lower", "compare", "report")


def test_the_table_names_packages_and_steps() -> None:
    table = code.packages()
    assert table == rules()["STEP_PACKAGES"]
    assert len(table) <= 20
    assert {step for steps in table.values() for step in steps} == set(rules()["STEPS"]) == set(STEPS)
    for package in [*table, *rules()["COMMAND_LINE_PACKAGES"]]:
        assert (DRIVER / package).is_dir(), package


def test_comments_and_docstrings_are_no_code_and_all_else_is() -> None:
    same = ['def f():\n    """One."""\n    return 1\n', '# A\ndef f():  # b\n    """Two\n\n    """\n\n    return (1)\n']
    assert code.code_of(same[0]) == code.code_of(same[1])
    others = ['f("""a""")', 'f("""a\n""")', 'f("""a\n\n""")', 'f("""a # b\n""")', 'f("a # b")', 'f(\n"""\na\n"""\n)']
    others += ["f('\"')  # '", 'f(1)  # "', "f(2)", "f('#')", "f('# a')", 'f(\n"""\nb\n"""\n)', "if x:\n    f('a')"]
    assert len({*map(code.code_of, others)}) == len(others)


def digests() -> dict[str, str]:
    """The digest of each step, for programs without plug-ins and with one."""
    code._digest.cache_clear()
    code._digest_of_package.cache_clear()
    used = {"none": [], "vulkan": ["etplugins.vulkan"]}
    return {f"{step} {name}": code.digest_of(step, each) for step in STEPS for name, each in used.items()}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the driver, for whose code there are keys."""
    for place in ("etbuild", "etplugins"):
        shutil.copytree(TOOLCHAIN / place, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
    plugins.plugins()  # those of etkit are not in the copy, and other tests need them
    monkeypatch.setattr(code, "_PACKAGE", tmp_path / "etbuild")
    monkeypatch.setattr(plugins, "ROOT", tmp_path)
    (tmp_path / "etbuild/__pycache__").mkdir()
    code._remembered.cache_clear()
    yield tmp_path
    for cache in (code._digest, code._digest_of_package, code._remembered, plugins.plugins, plugins.group):
        cache.cache_clear()


def test_an_edit_changes_the_keys_of_the_steps_that_run_the_package_and_no_others(copy: Path) -> None:
    """One file of each package is edited."""
    table, before = code.packages(), digests()
    for file in sorted([copy / "etbuild/errors.py", *copy.glob("*/*/__init__.py")]):
        content = file.read_bytes()
        file.write_bytes(content + b"\n# A comment.\n")
        assert digests() == before
        file.write_bytes(content + b"\nEDITED = 1\n")
        after = digests()
        file.write_bytes(content)
        changed = {key for key in before if before[key] != after[key]}
        place, package = file.relative_to(copy).parts[:2]
        if place == "etplugins":
            assert changed == {f"{step} vulkan" for step in STEPS if package == "vulkan"}, file
        else:
            steps = table.get("" if package == "errors.py" else package, ())
            assert changed == {f"{step} {used}" for step in steps for used in ("none", "vulkan")}, file


def test_digests_are_remembered_until_a_file_changes(copy: Path) -> None:
    before = digests()
    remembered = copy / f"etbuild/__pycache__/code.{sys.implementation.cache_tag}.json"
    written = remembered.read_bytes()
    code._remembered.cache_clear()
    assert digests() == before
    assert remembered.read_bytes() == written
    for text in ("", "{", "[]"):
        remembered.write_text(text)
        code._remembered.cache_clear()
        assert digests() == before


def top_level_imports(text: str) -> set[str]:
    """The modules of the driver that a module imports as soon as it is imported itself, and names in them."""
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return found


@pytest.mark.parametrize("step", STEPS)
def test_the_driver_of_an_action_tells_what_it_can_do(step: str, tmp_path: Path) -> None:
    """Somebody may start it from bazel-bin by hand."""
    driver = driver_of_action(step)
    for name in driver:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOOLCHAIN / name, tmp_path / name)

    def say(*arguments: str, expect: int) -> str:
        command = [sys.executable, "-S", "-s", "-P", str(tmp_path / "etbuild/__main__.py"), *arguments]
        done = subprocess.run(command, env={}, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == expect, done.stderr
        return done.stdout + done.stderr

    assert say("--help", expect=0).startswith("usage: etbuild ")
    assert "Traceback" not in say(expect=2)
    verbs = {**{verb: f"etbuild/cli/{verb}.py" for verb in VERBS}, "compare": "etplugins/comparison/verb.py"}
    here = {verb for verb, file in verbs.items() if file in driver}
    assert step in here
    for verb in {"validate", "export", "build", "compare", step}:
        if verb in here:
            assert say(verb, "--help", expect=0).startswith(f"usage: etbuild {verb} ")
        else:
            assert say(verb, "--help", expect=2).startswith(f"error: there is no verb `{verb}`\n")


OF_PLANNING = ("manifest_keys", "manifest_section", "plan_output", "runner", "runner_constants", "step_plan")
OF_REPORT = ("report_part", "runner", "runner_constants")
OF_METHODS = [
    *("example_input", "export_recipe", "guard", "method_change", "method_source", "module_source", "quantizer"),
    *("switch", "tensor_file", "workaround"),
]
OF_LOWERING = {"emission", "lowering", "xnnpack"}
"""The places of workarounds that an export does not ask for."""
SEARCH = ["etplugins.comparison.locate", "etbuild.emit.emit_methods", "etbuild.lower.lower_methods"]
"""What looks for the operator of a wrong program."""
LOWERING = ["etplugins.templates.one_by_one", "etplugins.templates.method_archive", "etplugins.templates.unbound"]
"""What lowers methods by themselves."""


@pytest.mark.parametrize("step", STEPS)
def test_the_driver_of_an_action_has_what_it_imports(step: str) -> None:
    """As soon as the verb, the step, and what plug-ins provide for it are imported."""
    files = {path.relative_to(TOOLCHAIN).as_posix(): path for path in TOOLCHAIN.glob("et*/**/*.py")}
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in files}
    names = (f"etbuild.cli.{step}", f"etbuild.steps.{step}", "etplugins.comparison.verb", "etplugins.comparison.step")
    waiting = ["etbuild.__main__", "etbuild.cli.main", *(names[2:] if step == "compare" else names[:2])]
    waiting += ["etplugins.worker.server", "etplugins.worker.warm_up"]
    groups = {"plan": OF_PLANNING, "report": OF_REPORT}.get(step, OF_METHODS)
    provided = [plugin.provides.get(group, {}) for plugin in plugins.plugins().values() for group in groups]
    keys = ("model.huggingface", "model.adapters", "quantize", "recipe", "recipe.call")
    provided.append({key: PluginKeys(key).kind.__module__ for key in keys})
    left_out = OF_LOWERING if step == "export" else ()
    places = (place for names in provided for name, place in names.items() if name not in left_out)
    waiting += [place.partition(":")[0] for place in places]
    waiting += SEARCH if step == "compare" else []
    waiting += LOWERING if step == "lower" else []
    found: set[str] = set()
    while waiting:
        if (module := waiting.pop()) not in found:
            found.add(module)
            waiting += top_level_imports(files[modules[module]].read_text("utf-8")) & modules.keys()
    of_targets = {file for name in rules()["PLUGINS"] for file in plugin_of_action(name)}
    assert {modules[module] for module in found} - driver_of_action(step) - of_targets == set()


@pytest.mark.parametrize("step", STEPS)
def test_the_driver_of_an_action_has_plugins_that_no_target_names(step: str) -> None:
    """And when it plans, also what the others provide, to name those that a program needs."""
    here = {Path(file) for file in driver_of_action(step) if file.startswith("etplugins/") and file.count("/") > 1}
    code_of = {file.parts[1] for file in here if file.suffix == ".py"}
    known = {file.parts[1] for file in here if file.name == plugins.FILE}
    named = {each.name for each in plugins.plugins().values() if each.is_named}
    assert named == rules()["PLUGINS"].keys()
    assert code_of == {name for name, steps in rules()["PLUGINS_OF_STEPS"].items() if step in steps}
    assert known == code_of | (named if step == "plan" else set())
    for each in plugins.plugins().values():
        if step in each.always or each.provides.keys() & plugins.AROUND_STEPS:
            assert each.name in code_of


def test_a_worker_lowers_a_program_as_a_manifest_would_plan_it() -> None:
    """An action that lowers has no code for manifests."""
    method: Method = {"example_inputs": [{"shape": [1, 8]}], "partitioners": [{"backend": "xnnpack", "options": {}}]}
    manifest: Manifest = {"name": "tiny", "model": {"factory": "tiny:create"}, "methods": {"forward": method}}
    assert LowerPlan.from_json(warm_up._TINY_PLAN) == from_manifest(manifest).lower_plan


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_is_in_the_drivers_of_the_actions_that_it_runs(edit: Edit) -> None:
    """Builds with these edits are in `tests/bazel/test_driver_edits.py`. They make each action with another driver."""

    def copied() -> str:
        text = (TOOLCHAIN / edit.file).read_text("utf-8")
        after = text.replace(edit.old, edit.new, 1) if edit.old else f"{text}\nEDITED = 1\n"
        forms = [for_actions(edit.file, each.encode()) for each in (text, after)]
        return "the same" if forms[0] == forms[1] else "another"

    has_it = {step for step in STEPS if edit.file in driver_of_action(step) and copied() == "another"}
    assert has_it == edit.steps("net", in_rules=True)
