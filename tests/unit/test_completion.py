"""`etbuild completion`: a real bash completes with the code that it prints."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from etbuild.cli import main


@cache
def code(shell: str) -> str:
    command = [sys.executable, "-m", "etbuild", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_code(shell: str) -> None:
    for word in ("selected-ops", "exit-code"):  # a verb of a plug-in, and an option
        assert word in code(shell)


def test_the_package_that_makes_the_code_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main.main(["completion", "bash"]) == 2
    assert "needs the package `shtab`\n    pip install shtab" in capsys.readouterr().err


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
    (tmp_path / "etbuild.bash").write_text(code("bash"))
    words = line.split()
    script = f"""
        source etbuild.bash
        COMP_WORDS=({line}) COMP_CWORD={len(words) - 1} COMP_LINE="{line}" COMP_POINT={len(line)}
        $(complete -p etbuild | grep -o "_shtab[a-z_]*") etbuild {words[-1]} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert {word.strip().rstrip("/") for word in done.stdout.splitlines()} == completed, done.stderr
