"""The page for those who have a script: each script and the manifest beside it make programs that compute the same."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import etbuild
from tests.helpers.commands import build
from tests.helpers.snippets import snippets

PAGE = "docs/from-a-script.md"
BLOCKS = [each for each in snippets() if each.place.startswith(PAGE)]
PAIRS = [*zip(BLOCKS[1::2], BLOCKS[2::2], strict=True)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each script, with the files that it wrote. All run in one process, in the order of the page."""
    directory = tmp_path_factory.mktemp("scripts")
    parts = []
    for number, (script, _) in enumerate(PAIRS):
        ast.parse(script.text, script.place)
        (directory / str(number)).mkdir()
        parts.append(f"os.chdir({str(directory / str(number))!r})\n{script.text}")
    (directory / "net.py").write_text(BLOCKS[0].text)
    (directory / "all.py").write_text("import os\n" + "\n".join(parts))
    subprocess.run([sys.executable, directory / "all.py"], check=True, capture_output=True)
    return directory


def opened(directory: Path) -> etbuild.Program:
    return etbuild.open_program(directory / "net.pte", sorted(directory.glob("*.ptd")))


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[script.section[-1] for script, _ in PAIRS])
def test_a_manifest_makes_what_the_script_beside_it_makes(number: int, written: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    manifest: dict[str, Any] = {**yaml.safe_load(PAIRS[0][1].text), **yaml.safe_load(PAIRS[number][1].text)}
    (tmp_path / "net.py").write_text(BLOCKS[0].text)
    (tmp_path / "net.yaml").write_text(yaml.safe_dump(manifest))
    batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    save_file({"x": batch[None]}, tmp_path / "batches.safetensors")
    build(tmp_path / "net.yaml", tmp_path / "out")
    ours, theirs = opened(tmp_path / "out"), opened(written / str(number))
    assert sorted(path.suffix for path in (tmp_path / "out").glob("*.pt?")) == sorted(
        path.suffix for path in (written / str(number)).iterdir()
    )
    for name in manifest["methods"]:
        [actual], [expected] = ours.method(name)(batch), theirs.method(name)(batch)
        assert isinstance(actual, torch.Tensor)
        assert isinstance(expected, torch.Tensor)
        assert torch.equal(actual, expected), (actual - expected).abs().max()
