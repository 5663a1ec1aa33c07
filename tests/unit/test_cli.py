"""The command line as a whole: exit codes, streams, and no import of torch where it is not needed."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etbuild import plugins
from etbuild.cli import VERBS, main
from etbuild.cli.options import tell_memory
from etbuild.surroundings import memory

ROOT = Path(__file__).parent.parent.parent
MLP = str(ROOT / "examples" / "mlp" / "model.yaml")


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["--help"], {"email.parser"}),
        (["--version"], {"email.parser", "importlib.metadata"}),
        (["validate", MLP], {"email.parser", "importlib.metadata"}),
        (["plan", MLP], {"email.parser"}),
        (["explain", MLP, MLP], {"email.parser"}),
        (["cache", "info"], {"email.parser"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_these_verbs_import_nothing_that_takes_long(arguments: list[str], more: set[str]) -> None:
    script = (
        "import sys\nfrom etbuild.cli.main import main\n"
        "try:\n    code = main(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
        "assert code in (0, None), code\n"
        f"assert not {{'torch', 'executorch', 'numpy', 'urllib.request', *{sorted(more)}}} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


@pytest.mark.parametrize("step", ["plan", "report"])
def test_workers_for_steps_without_torch_import_none(step: str) -> None:
    """A request then imports nothing of the driver but the module of its verb."""
    script = (
        f"import os, sys\nfrom etplugins.worker.warm_up import warm\nwarm({step!r})\n"
        "assert 'etbuild.plan.plan' in sys.modules\n"
        "assert not {'torch', 'executorch', 'numpy'} & set(sys.modules)\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_step_says_when_it_took_more_memory_than_was_reserved(capsys: pytest.CaptureFixture[str]) -> None:
    tell_memory(1 << 30)
    assert capsys.readouterr().err == ""
    tell_memory(1)
    said = r'note: this step took \d+ MB of memory, and 1 MB were reserved for it: write `resource_set = "mem_\w+"`'
    assert re.match(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("taken", "advice"),
    [
        (500, 'write `resource_set = "mem_512m"` in its target'),
        (513, 'write `resource_set = "mem_1g"` in its target'),
        (32768, 'write `resource_set = "mem_32g"` in its target'),
        (32769, "no `resource_set` is that large: with a lower `--jobs` of Bazel, fewer steps run at the same time"),
    ],
)
def test_the_advice_about_memory_is_enough_memory(
    taken: int, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "peak", lambda: taken << 20)
    tell_memory(1)
    told = f"note: this step took {taken} MB of memory, and 1 MB were reserved for it: {advice}\n"
    assert capsys.readouterr().err == told


def test_the_page_of_a_build_needs_no_torch() -> None:
    """A build from the cache writes it in less than a second, and without messages of libraries."""
    script = "import sys, etkit.inspection.page.of_build; assert not {'torch', 'executorch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_validate_reports_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("schema: executorch-model/v1\n")
    assert main.main(["validate", str(tmp_path / "a.yaml"), MLP, str(tmp_path / "b.yaml")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a.yaml:1:1" in captured.err
    assert "b.yaml:1:1" in captured.err
    assert captured.err.endswith("6 errors\n")


def test_validate_json_is_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("schema: executorch-model/v1\nname: 7\n")
    assert main.main(["validate", "--json", str(tmp_path / "a.yaml")]) == 2
    problems = json.loads(capsys.readouterr().out)
    assert {"line": 2, "column": 7, "path": ["name"]}.items() <= problems[-1].items()


def test_validate_of_good_manifests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["validate", MLP]) == 0
    assert capsys.readouterr().out == "1 manifest checked: no errors\n"


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["validate", "no/such.yaml"]) == 2
    assert "no/such.yaml: cannot read the file: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.py", "is a Python source, not a manifest\n    name what makes the model: `etbuild build model.py:C"),
        (
            "model.py:create",
            "is a callable of a source, not a manifest\n    `etbuild build model.py:create --save FILE`",
        ),
        ("net.pte", "is a program, not a manifest\n    `etbuild --help` lists the verbs for programs"),
        ("net.index.json", "is the index of a build, not a manifest"),
        (".", "is a directory, not a manifest\n    name a file in it, such as model.yaml"),
    ],
)
def test_another_file_than_a_manifest_is_named_as_what_it_is(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in ("model.py", "net.pte", "net.index.json"):
        Path(each).touch()
    assert main.main(["plan", name]) == 2
    assert capsys.readouterr().err.startswith(f"error: {name}: {message}")


def test_plan_prints_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", MLP]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["key"]) == 64
    assert printed["inputs"]["plan"]["name"] == "mlp"


def test_only_a_line_feed_ends_an_argument_of_a_file(tmp_path: Path) -> None:
    words = ["plan", "--set=t=x\r", "--set=u=\x0b\x85\u2028"]
    (tmp_path / "params").write_bytes("".join(f"{word}\n" for word in words).encode())
    assert main._expand([f"@{tmp_path / 'params'}"]) == words


def test_arguments_may_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "params").write_text(f"--expect-name=other\n{MLP}\n")
    assert main.main(["plan", f"@{tmp_path / 'params'}"]) == 2
    assert 'write `name = "mlp"` or `manifest_name = "mlp"` into the BUILD file' in capsys.readouterr().err


@pytest.mark.parametrize("value", ["model.py", "=x", "model.py="])
def test_declarations_have_a_name_and_a_file(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", MLP, "--source", value]) == 2
    assert "expected NAME=FILE" in capsys.readouterr().err


def paths(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, argparse.Action]]:
    """The arguments of all verbs for people that are paths."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action._choices_actions:
                yield from paths(action.choices[verb.dest])
        elif action.type is Path:
            yield parser, action


def test_an_empty_name_is_not_the_current_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["cache", "info", "--cache-dir", ""])
    assert "--cache-dir: the name is empty; write `.` for the current directory" in capsys.readouterr().err
    found = list(paths(main.command_parser()))
    assert len(found) > 50
    for parser, action in found:
        with pytest.raises(argparse.ArgumentError, match="the name is empty"):
            parser._get_value(action, "")


def test_a_root_that_is_not_a_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", MLP, "--root", "no/such"]) == 2
    assert "--root no/such: not a directory" in capsys.readouterr().err


def test_a_reader_that_has_closed_the_pipe_gets_no_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "etbuild", "plan", MLP]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_a_full_standard_output_is_reported() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "etbuild", "plan", MLP]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        1,
        "etbuild: cannot write to standard output: No space left on device\n",
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["build-all", MLP],
            "there is no verb `build-all`\n    did you mean `build`? (known: affected, apply, bench, ",
        ),
        (["", MLP], "there is no verb ``\n    known: affected, "),
        ([MLP, "-o", "out"], f"there is no verb `{MLP}`\n    to build a manifest, write `etbuild build {MLP}`"),
        (
            ["plan", MLP, "--vriant", "x"],
            "etbuild plan: unknown argument `--vriant`\n    did you mean `--variant`? (kn",
        ),
        (["plan", MLP, "--vriant=x"], "etbuild plan: unknown argument `--vriant=x`\n    did you mean `--variant`? (kn"),
        (
            ["--json", "validate", MLP],
            "etbuild validate: unknown argument `--json`\n    write it after `etbuild validate`",
        ),
        (["plan", MLP, "x"], "etbuild plan: unknown argument `x`\n    `etbuild plan --help` shows what it takes"),
        (
            ["cache", "info", "--jsno"],
            "etbuild cache info: unknown argument `--jsno`\n    did you mean `--json`? (known: ",
        ),
    ],
)
def test_a_wrong_word_is_named_with_the_nearest_one(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_an_error_that_cannot_be_printed_keeps_its_exit_code() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "etbuild", "plan", "no.yaml"], stderr=full, check=False)
    assert done.returncode == 2


def test_a_package_that_is_missing_is_named() -> None:
    """Without `site`, Python finds nothing that is installed."""
    place = str(Path(main.__file__).parents[2])
    script = f"import sys; sys.path.append({place!r}); from etbuild.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, "plan", MLP], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.match(r"error: cannot import `(yaml|jsonschema)`\n.*pip check", done.stderr)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_not_errors(closed: str) -> None:
    result = subprocess.run(["sh", "-c", f"{sys.executable} -m etbuild validate {MLP} {closed}"], check=False)
    assert result.returncode == 0


@pytest.mark.parametrize("arguments", [["--help"], []], ids=["--help", "no argument"])
def test_help_lists_the_verbs_of_users_in_groups(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == (0 if arguments else 2)
    captured = capsys.readouterr()
    listed = re.findall(r"^  ([a-z][a-z-]+)(?:  +\w|$)", captured.out if arguments else captured.err, re.MULTILINE)
    assert listed == [verb for section in main.sections().values() for verb in section]
    assert listed[:6] == ["init", "targets", "doctor", "completion", "validate", "plan"]
    of_rules = {*plugins.group("verb"), *VERBS} - {*listed}
    assert of_rules == {"compare", "etrecord", "export", "lower", "page", "report", "reproduce", "runtime"}


@pytest.mark.parametrize("example", [example for section in main.sections().values() for example in section.values()])
def test_the_example_in_the_help_of_a_verb_can_be_run(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(re.sub(r'eval "\$\((.*)\)"', r"\1", example))
    assert main.command_parser([words[1]]).parse_args(words[1:]).verb == words[1]
    with pytest.raises(SystemExit):
        main.main([words[1], "--help"])
    assert f"example: {example}" in " ".join(capsys.readouterr().out.split())


def test_every_argument_has_a_help_text() -> None:
    [verbs] = [action for action in main.command_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    arguments = [(name, action) for name, parser in verbs.choices.items() for action in parser._actions]
    assert [f"{name} {action.dest}" for name, action in arguments if not action.help] == ["cache action"]
