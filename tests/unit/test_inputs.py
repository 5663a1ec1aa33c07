"""The key covers what a program imports and reads, and nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import options
from etbuild.errors import DocumentPath, InputError
from etbuild.files import digests
from etbuild.inputs import checkpoints
from etbuild.inputs.sources import reached_sources
from etbuild.key import import_graph, toolchain
from etbuild.key.declared import Inputs
from etbuild.key.key import KeyFiles, describe_inputs
from etbuild.plan.plan import Plan, from_manifest
from etkit.building import explanation


def make_plan(factory: str = "model:create", modules: list[str] | None = None, weights: str | None = None) -> Plan:
    model: Any = {"factory": factory, "modules": modules or []}
    if weights:
        model["weights"] = weights
    return from_manifest({"name": "net", "model": model, "methods": {"f": {"example_inputs": [{"shape": [1]}]}}})


def write(root: Path, **sources: str) -> Inputs:
    for name, text in sources.items():
        path = root / (name.replace("__", "/").replace("INIT", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Inputs(roots=[root])


def used(found: Inputs, **arguments: Any) -> list[str]:
    return list(import_graph.used_sources(found, make_plan(**arguments).export_plan).sources)


def test_imports_are_followed_and_others_left_out(tmp_path: Path) -> None:
    found = write(tmp_path, model="import a\nfrom b import x\nimport torch\n", a="import c\n", b="", c="", other="")
    assert used(found) == ["a.py", "b.py", "c.py", "model.py"]


def test_packages_relative_and_nested_imports(tmp_path: Path) -> None:
    found = write(
        tmp_path,
        model="from net.blocks import attention\ndef create():\n    import late\n",
        net__INIT="",
        net__blocks__INIT="from . import base\n",
        net__blocks__attention="from .base import x\nfrom ..common import y\n",
        net__blocks__base="",
        net__common="",
        net__unused="",
        late="",
    )
    assert used(found) == [
        "late.py",
        "model.py",
        "net/__init__.py",
        "net/blocks/__init__.py",
        "net/blocks/attention.py",
        "net/blocks/base.py",
        "net/common.py",
    ]


def test_imports_in_a_circle_end(tmp_path: Path) -> None:
    assert used(write(tmp_path, model="import a", a="import model")) == ["a.py", "model.py"]


def test_listed_modules_are_used(tmp_path: Path) -> None:
    assert used(write(tmp_path, model="", extra="import more", more=""), modules=["extra"]) == [
        "extra.py",
        "model.py",
        "more.py",
    ]


def test_declared_sources_come_before_searched_ones(tmp_path: Path) -> None:
    found = write(tmp_path, model="")
    other = tmp_path / "other.py"
    other.write_text("")
    found.sources["model.py"] = other
    assert import_graph.used_sources(found, make_plan().export_plan).sources == {"model.py": other}


def test_a_missing_module_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "modle.py").write_text("")
    with pytest.raises(InputError, match="did you mean `modle`"):
        import_graph.used_sources(Inputs(sources={"modle.py": tmp_path / "modle.py"}), make_plan().export_plan)


def test_a_source_is_not_found_through_a_link_that_leaves_the_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "model.py").write_text("")
    (tmp_path / "root" / "model.py").symlink_to("../model.py")
    assert Inputs(roots=[tmp_path / "root"]).source("model.py") is None


def test_data_behind_a_link_counts_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "blob").write_bytes(b"weights")
    (tmp_path / "root" / "w.safetensors").symlink_to("../blob")
    behind_a_link, plain = write(tmp_path / "root", model=""), write(tmp_path / "plain", model="")
    (tmp_path / "plain" / "w.safetensors").write_bytes(b"weights")
    keys = [weights_key(found, "w.safetensors") for found in (behind_a_link, plain)]
    assert keys[0] == keys[1]
    (tmp_path / "blob").write_bytes(b"other weights")
    assert weights_key(behind_a_link, "w.safetensors") != keys[0]


def test_a_name_that_cannot_be_declared(tmp_path: Path) -> None:
    name = "lr=0.1/w.safetensors"
    with pytest.raises(InputError, match="takes no name with `=`"):
        Inputs(data={"lr": Path("0.1/w.safetensors=w.safetensors")}).find_data(name, ("model", "weights"))
    (tmp_path / "lr=0.1").mkdir()
    (tmp_path / name).write_bytes(b"")
    assert Inputs(roots=[tmp_path]).find_data(name, ("model", "weights")) == tmp_path / name


def weights_key(found: Inputs, weights: str) -> str:
    wanted = make_plan(weights=weights)
    return digests.digest(describe_inputs(wanted, found, import_graph.used_sources(found, wanted.export_plan)))


def key(found: Inputs) -> str:
    return digests.digest(
        describe_inputs(make_plan(), found, import_graph.used_sources(found, make_plan().export_plan))
    )


def test_the_key_depends_on_contents_and_not_on_places(tmp_path: Path) -> None:
    first = write(tmp_path / "a", model="import helper\n", helper="x = 1\n")
    second = write(tmp_path / "elsewhere" / "b", model="import helper\n", helper="x = 1\n")
    before = key(first)
    assert before == key(second)
    (tmp_path / "a" / "unrelated.py").write_text("y = 2\n")
    assert before == key(first)
    (tmp_path / "a" / "helper.py").write_text("x = 2\n")
    assert before != key(first)


def test_the_toolchain_names_what_lowers() -> None:
    distributions = toolchain.toolchain()["distributions"]
    assert {"torch", "executorch", "torchao", "numpy", "safetensors"} <= distributions.keys()
    assert "pytest" not in distributions


def test_packages_that_sources_import_are_in_the_key(tmp_path: Path) -> None:
    found = write(tmp_path, model="import pytest\nimport json\nimport not_installed_anywhere\n")
    used = import_graph.used_sources(found, make_plan().export_plan)
    assert used.packages == {"pytest", "not_installed_anywhere"}
    assert "pytest" in describe_inputs(make_plan(), found, used)["toolchain"]["distributions"]


def test_a_package_without_a_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "loose").mkdir(parents=True)
    (tmp_path / "site" / "loose" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = write(tmp_path / "in", model="import loose\n")
    with pytest.raises(InputError, match="installed without a version"):
        key(found)


INDEX = "model.safetensors.index.json"


def write_folder(folder: Path, shards: int = 2) -> None:
    """Writes a checkpoint with shards. Only the index is read for the key."""
    folder.mkdir()
    names = {f"layer{number}": f"part{number}.safetensors" for number in range(shards)}
    for name in names.values():
        (folder / name).write_text(name)
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    (folder / "README.md").write_text("")


@pytest.mark.parametrize("weights", ["net", f"net/{INDEX}"])
def test_the_key_holds_the_index_and_each_shard(tmp_path: Path, weights: str) -> None:
    write_folder(tmp_path / "net")
    found, wanted = write(tmp_path, model=""), make_plan(weights=weights)
    described = describe_inputs(wanted, found, import_graph.used_sources(found, wanted.export_plan))
    assert sorted(described["data"]) == [f"net/{INDEX}", "net/part0.safetensors", "net/part1.safetensors"]
    before = weights_key(found, weights)
    (tmp_path / "net/README.md").write_text("edited")
    assert weights_key(found, weights) == before
    (tmp_path / "net/part1.safetensors").write_text("edited")
    assert weights_key(found, weights) != before


def test_a_declared_directory_declares_its_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "net")
    (tmp_path / "blob").write_text("part0")
    (tmp_path / "net/part0.safetensors").unlink()
    (tmp_path / "net/part0.safetensors").symlink_to("../blob")
    found = options.inputs(argparse.Namespace(data=[f"w={tmp_path / 'net'}"]), [])
    assert sorted(found.data) == ["w/README.md", f"w/{INDEX}", "w/part0.safetensors", "w/part1.safetensors"]
    assert sorted(checkpoints.find("w", (), found).files) == ["w/part0.safetensors", "w/part1.safetensors"]


@pytest.mark.parametrize(
    ("file", "name", "belongs"),
    [
        ("net.pt", "net.pt", True),
        ("net.pt", "other.pt", False),
        ("net/a.safetensors", "net", True),
        ("net/config.json", "net", False),
        ("net/sub/a.safetensors", "net", False),
        ("net/a.safetensors", f"net/{INDEX}", True),
        ("other/a.safetensors", f"net/{INDEX}", False),
        ("a.safetensors", INDEX, True),
        ("config.json", INDEX, False),
    ],
)
def test_which_files_a_name_stands_for(file: str, name: str, belongs: bool) -> None:
    assert explanation.belongs_to(file, name) is belongs


@pytest.mark.parametrize("target", ["../w.pt", "/dev/zero", "."])
def test_a_link_that_leads_to_no_file_is_named(tmp_path: Path, target: str) -> None:
    (tmp_path / "w.pt").symlink_to(target)
    with pytest.raises(InputError, match=r"is a link to .*, which is not a file"):
        Inputs(roots=[tmp_path]).find_data("w.pt", ("model", "weights"))


def test_a_folder_stands_for_a_checkpoint_only_in_weights(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/model.safetensors").write_text("")
    found, file = Inputs(roots=[tmp_path]), "net/model.safetensors"
    weights: DocumentPath = ("model", "weights")
    assert checkpoints.with_shards({"net": weights}, found) == {file: weights}
    with pytest.raises(InputError, match=r"tokenizer\[0\]: `net` is a folder, and this needs a file"):
        found.only(checkpoints.with_shards({"net": ("tokenizer", 0)}, found))


def refusal(found: Inputs, **arguments: Any) -> str:
    wanted = make_plan(**arguments)
    try:
        describe_inputs(wanted, found, import_graph.used_sources(found, wanted.export_plan))
    except InputError as error:
        return str(error)
    raise AssertionError("not refused")


def test_names_that_calls_spell_out_are_followed(tmp_path: Path) -> None:
    calls = "import importlib\nimportlib.import_module('a')\n__import__('b')\n"
    relative = "from importlib import import_module\nimport_module('.part', __package__)\nimport_module('.')\n"
    found = write(tmp_path, model=calls + "import net\n", a="", b="", net__INIT=relative, net__part="", part="")
    assert used(found) == ["a.py", "b.py", "model.py", "net/__init__.py", "net/part.py"]


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "1 + " * 200_000 + "1",
        "x = " + "-" * 200_000 + "1",
        "x = a" + ".b" * 200_000,
        "x = " + "lambda: " * 9_000,
        "if a:\n    pass\n" + "elif a:\n    pass\n" * 20_000,
    ],
    ids=["sum", "signs", "attributes", "lambdas", "elif"],
)
def test_an_expression_that_is_too_long_is_an_error_of_the_source(tmp_path: Path, text: str) -> None:
    message = refusal(write(tmp_path, model=text))
    assert "the source `model.py` is not valid Python: an expression or a chain of `elif` in it is too long" in message


def test_a_source_that_cannot_be_read(tmp_path: Path) -> None:
    for file, why in (
        (tmp_path / "none.py", "there is no such file"),
        (tmp_path, "it is not a file"),
        (Path("/dev/zero"), "it is not a file"),
        (Path("/proc/self/mem"), "Input/output error"),  # root may read every file with permissions
    ):
        message = refusal(Inputs(sources={"model.py": file}))
        assert message.startswith(f"model.factory: cannot read the source `model.py` from {file}: {why}")


def test_data_that_is_not_there(tmp_path: Path) -> None:
    model = write(tmp_path, model="")
    for file, why in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "is not a file"),
        (Path("/dev/zero"), "not a file"),
    ):
        model.data["w.pt"] = file
        message = refusal(model, weights="w.pt")
        assert message.startswith(f"model.weights: `w.pt` is declared as {file}, which")
        assert why in message
    model.data["w.pt"] = Path("/proc/self/mem")
    assert "cannot read `w.pt` from /proc/self/mem: Input/output error" in refusal(model, weights="w.pt")


def test_names_that_no_file_can_have_are_not_declared(tmp_path: Path) -> None:
    for name in ("w" * 5_000, "w/" * 3_000, "w\0.pt", "w\0/w.pt"):
        assert "there is no file" in refusal(write(tmp_path, model=""), weights=name)


def test_declared_data_that_the_manifest_does_not_name_is_in_the_key(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("1")
    found = write(tmp_path, model="")
    without = key(found)
    found.data["table"] = tmp_path / "table.txt"
    before = key(found)
    (tmp_path / "table.txt").write_text("2")
    assert len({without, before, key(found)}) == 3


def test_each_source_is_read_only_once(tmp_path: Path) -> None:
    found = write(tmp_path, model="import helper\n", helper="x = 1\n")
    read = import_graph.used_sources(found, make_plan().export_plan)
    (tmp_path / "helper.py").write_text("x = 2\nimport model\n")
    assert reached_sources(read, ["helper"]).contents == {"helper.py": b"x = 1\n"}
    files = KeyFiles.read(found, read, {})
    (tmp_path / "helper.py").unlink()
    files.check_unchanged()  # its content is in memory


def test_weights_of_another_format_are_named(tmp_path: Path) -> None:
    (tmp_path / "math").mkdir()
    (tmp_path / "math/adapter_model.bin").write_bytes(b"1")
    with pytest.raises(InputError, match=r"there is no file `[\w/.]+`\n +there is `math/adapter_model.bin`"):
        Inputs(roots=[tmp_path]).find_data("math/adapter_model.safetensors", ("model", "adapters", "math"))


@pytest.mark.parametrize("marker", ["WORKSPACE", "MODULE.bazel"])
@pytest.mark.parametrize(
    ("made", "hint"),
    [
        ("bazel-bin/weights/rank.safetensors", "add `--root {0}/bazel-bin`"),
        ("bazel-bin/models/rank/weights/rank.safetensors", "add `--root {0}/bazel-bin/models/rank`"),
        ("weights/rank.safetensors", "add `--root {0}`"),
        (None, "if Bazel makes the file, build it first, and add `--root {0}/bazel-bin`"),
    ],
)
def test_a_missing_file_in_a_workspace_is_looked_for_where_bazel_has_it(
    tmp_path: Path, marker: str, made: str | None, hint: str
) -> None:
    package = tmp_path / "models/rank"
    package.mkdir(parents=True)
    name = "weights/rank.safetensors"
    with pytest.raises(InputError) as outside:
        Inputs(roots=[package]).find_data(name, ("model", "weights"))
    assert "--root" not in str(outside.value)
    (tmp_path / marker).touch()
    if made is not None:
        (tmp_path / made).parent.mkdir(parents=True)
        (tmp_path / made).touch()
    with pytest.raises(InputError) as error:
        Inputs(roots=[package]).find_data(name, ("model", "weights"))
    assert str(error.value).endswith(hint.format(tmp_path))
