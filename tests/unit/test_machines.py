"""The fresh machines that the README's commands run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines import run


@pytest.mark.parametrize("failing", ["useradd ", "clone "])
def test_a_machine_that_cannot_be_made_is_no_result(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base/etc/sudoers.d").mkdir(parents=True)
    monkeypatch.setattr(run, "enter", lambda root, user, command: int(failing in command))
    monkeypatch.setattr(run, "gigabytes", lambda root: 0.0)
    with pytest.raises(SystemExit, match=f"The machine cannot be made. This failed: (.*){failing}"):
        run.run_machine(tmp_path / "base", "alice", ["true"])
