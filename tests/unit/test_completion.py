"""`etbuild completion`: the code for shells is of the driver's own parsers, and a real bash completes with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from etbuild.cli import main
from etkit.cli.completion import SHELLS
from tools.reference import COMPLETIONS, completion_files
from tools.write_reference import main as write


def test_the_code_is_of_the_parsers(update_golden: bool) -> None:
    if update_golden:
        write()
    committed = {path.name: path.read_text("utf-8") for path in COMPLETIONS.iterdir()}
    assert committed == completion_files(), "run `make reference`: the completion of shells is not current"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_gets_its_code(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["completion", shell]) == 0
    assert capsys.readouterr().out == (COMPLETIONS / f"etbuild.{shell}").read_text("utf-8")


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("etbuild ins", {"inspect"}),
        ("etbuild inspect --h", {"--help", "--html"}),
        ("etbuild cache in", {"info"}),
        ("etbuild completion z", {"zsh"}),
        ("etbuild build mod", {"model.yaml"}),
        ("etbuild build model.yaml --root sou", {"sources"}),
    ],
)
def test_bash_completes(line: str, completed: set[str], tmp_path: Path) -> None:
    (tmp_path / "model.yaml").touch()
    (tmp_path / "sources").mkdir()
    words = line.split()
    script = f"""
        source {COMPLETIONS / "etbuild.bash"}
        COMP_WORDS=({line}) COMP_CWORD={len(words) - 1} COMP_LINE="{line}" COMP_POINT={len(line)}
        $(complete -p etbuild | grep -o "_shtab[a-z_]*") etbuild {words[-1]} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert {word.strip().rstrip("/") for word in done.stdout.splitlines()} == completed, done.stderr
