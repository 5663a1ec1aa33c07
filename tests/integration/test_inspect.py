"""`etbuild inspect` reads any program and named data, and refuses other files and damaged ones."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch
from executorch.exir import to_edge

from etbuild.cli import main

from .conftest import MANIFEST, Build

TAGGED = MANIFEST + "named_data:\n  weights: {parameters: ['*']}\n"


def inspect(path: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main.main(["inspect", str(path), *arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def test_a_program_and_its_named_data(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    directory = build(TAGGED).directory
    code, out, err = inspect(directory / "net.pte", capfd)
    assert (code, err) == (0, "")
    assert "forward(float32[2, 8]) -> (float32[2, 4])" in out
    assert "delegate XnnpackBackend: 1 call" in out
    code, out, err = inspect(directory / "net.weights.ptd", capfd, "--json")
    assert (code, err) == (0, "")
    assert sorted(json.loads(out)["named_data"].values()) == [16, 128]


def test_a_program_made_elsewhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    example = (torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int32))
    path = tmp_path / "add.pte"
    path.write_bytes(to_edge(torch.export.export(Add(), example)).to_executorch().buffer)
    code, out, _ = inspect(path, capfd, "--json")
    assert code == 0
    method = json.loads(out)["methods"]["forward"]
    assert method["operators"] == {"aten::add.out": 1}
    assert [value["dtype"] for value in method["inputs"]] == ["int32", "int32"]


@pytest.mark.parametrize("name", ["net.pte", "net.weights.ptd"])
def test_every_truncation_and_random_damage_is_an_answer_or_an_error(
    build: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    whole = build(TAGGED).read(name)
    broken = tmp_path / name
    for length in [0, 3, 4, 7, 8, 40, 63, 200, len(whole) // 2, len(whole) - 1]:
        broken.write_bytes(whole[:length])
        code, _, err = inspect(broken, capfd)
        assert code == 2, length
        assert "damaged" in err or "neither" in err
    generator = random.Random(0)
    for _ in range(20):
        data = bytearray(whole)
        data[generator.randrange(8, 400)] ^= 1 << generator.randrange(8)
        broken.write_bytes(data)
        code, _, err = inspect(broken, capfd)
        assert code in (0, 2)
        assert not re.search(r"unpack|buffer|codec|object|attribute|NoneType", err)


def test_files_of_another_kind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    assert inspect(tmp_path / "notes.txt", capfd)[0] == 2
    assert inspect(tmp_path / "missing.pte", capfd)[0] == 2
    assert inspect(tmp_path, capfd)[0] == 2


TIED = """
import torch
from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(64, 32)
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.emb.weight
        self.wide = nn.Linear(32, 512)

    def forward(self, tokens):
        x = self.emb(tokens)
        return self.head(x), self.wide(x).sort()[0].sum()


def create():
    torch.manual_seed(0)
    return Tied()
"""
TOKENS = MANIFEST.replace("{shape: [2, 8]}", "{shape: [2, 8], dtype: int64}")


def test_sizes_add_up_and_the_largest_are_named(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    program = build(TOKENS, model=TIED).directory / "net.pte"
    code, out, _ = inspect(program, capfd)
    assert code == 0
    assert re.search(
        r"planned memory: .*\n    65\.5 kB: the result of aten::sort\.values, int64\[2, 8, 512\]\n", out
    ), out
    assert re.search(r"^largest blobs +size\nwide\.weight +65\.5 kB$", out, re.MULTILINE), out
    assert "head.weight is stored twice, 8.2 kB too many" in out, out
    sizes = dict(
        re.findall(
            r"^(constants|mutable|delegates|named data|instructions and gaps|the file) .*?([\d.]+ k?B)$",
            out,
            re.MULTILINE,
        )
    )
    assert sizes["the file"] in out.partition("\n")[0]
    assert set(sizes) == {"constants", "mutable", "delegates", "named data", "instructions and gaps", "the file"}


def test_a_method_without_a_backend_says_so(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    program = build(MANIFEST.replace("[xnnpack]", "[]")).directory / "net.pte"
    said = "the manifest asks for no backend: `partitioners: [xnnpack]` asks for one"
    assert said in inspect(program, capfd)[1]
    program.with_name("net.index.json").unlink()
    assert said not in inspect(program, capfd)[1]


def test_a_product_with_a_weight_is_a_linear_layer(build: Build, capfd: pytest.CaptureFixture[str]) -> None:
    model = TIED.replace("self.head(x)", "x @ self.emb.weight.T")
    out = inspect(build(TOKENS, model=model).directory / "net.pte", capfd)[1]
    assert "write `F.linear(x, weight)`" in out, out
