"""Checkpoints as hubs and training code deliver them: shards, links, folders, other names and other dtypes."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from etbuild import plugins
from etbuild.errors import DocumentPath, InputError
from etbuild.key.declared import Inputs
from etbuild.model.checkpoint import CheckpointTensors
from etbuild.model.tensor_files import TensorFile, read_tensors
from etbuild.model.tensor_names import stars
from etbuild.model.weights_files import describe_state
from etbuild.plan.parts import WeightsFile
from tests.helpers.runtime import run
from tests.integration.conftest import MODEL, Build

WEIGHT, BIAS = torch.arange(32.0).reshape(4, 8), torch.full((4,), 0.5)
PLAIN = {"linear.weight": WEIGHT, "linear.bias": BIAS}


class Net(torch.nn.Module):
    """The module of these tests: float32, with a tied parameter if asked for."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        if tied:
            self.head = torch.nn.Linear(8, 4, bias=False)
            self.head.weight = self.linear.weight


def read(root: Path, *weights: Any, cast: bool = False, net: torch.nn.Module | None = None) -> dict[str, torch.Tensor]:
    """The content of the module's tensors, read from checkpoints below a directory."""
    entries = tuple(map(WeightsFile.from_json, weights))
    return CheckpointTensors(entries, Inputs(roots=[root]), describe_state(net or Net()), cast).by_name()


def refusal(root: Path, *weights: Any, **arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(root, *weights, **arguments)
    return str(caught.value)


def write_shards(directory: Path, **change: Any) -> None:
    """Writes a checkpoint of two shards with its index."""
    directory.mkdir(parents=True, exist_ok=True)
    names = {name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate(PLAIN, 1)}
    for name, file in names.items():
        save_file({name: PLAIN[name]}, directory / file)
    index = {"metadata": {"total_size": 144}, "weight_map": {**names, **change}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def assert_plain(content: dict[str, torch.Tensor]) -> None:
    assert content.keys() == PLAIN.keys()
    for name, tensor in PLAIN.items():
        assert torch.equal(content[name], tensor), name


def test_shards_are_found_by_their_index_and_by_their_folder(tmp_path: Path) -> None:
    write_shards(tmp_path / "net")
    assert_plain(read(tmp_path, "net/model.safetensors.index.json"))
    assert_plain(read(tmp_path, "net"))


def test_a_folder_of_a_hub_cache_leads_through_links(tmp_path: Path) -> None:
    write_shards(tmp_path / "blobs")
    snapshot = tmp_path / "hub/snapshots/1234"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((tmp_path / "blobs").iterdir())):
        (snapshot / file.name).symlink_to(file.rename(tmp_path / f"blobs/{number}"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/net").symlink_to("../hub/snapshots/1234")
    assert_plain(read(tmp_path / "project", "net"))


def open_numbers(name: str, file: Path, path: DocumentPath, module: torch.nn.Module | None) -> TensorFile:
    """Opens a file of the plug-in below: JSON, with lists of numbers by name."""
    return TensorFile({key: torch.tensor(numbers) for key, numbers in json.loads(file.read_text()).items()})


def test_a_plug_in_reads_files_with_a_suffix_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = plugins.Plugin("tests", "", {"tensor_file": {".numbers": f"{__name__}:open_numbers"}})
    monkeypatch.setitem(plugins._given, "tests", Path(__file__).parents[1])
    monkeypatch.setattr(plugins, "group", lambda name: {".numbers": plugin} if name == "tensor_file" else {})
    (tmp_path / "net.numbers").write_text(json.dumps({name: tensor.tolist() for name, tensor in PLAIN.items()}))
    assert_plain(read(tmp_path, "net.numbers"))
    assert "`key` goes with files of torch.save" in refusal(tmp_path, {"file": "net.numbers", "key": "model"})


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_with_one_file(tmp_path: Path, file: str) -> None:
    save = save_file if file.endswith(".safetensors") else torch.save
    (tmp_path / "net").mkdir()
    save(PLAIN, tmp_path / "net" / file)
    assert_plain(read(tmp_path, "net"))


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    assert "the folder `net` has no checkpoint" in refusal(tmp_path, "net")


@pytest.mark.parametrize("name", ["model.v2", "gemma.it", "Qwen2.5-0.5B"])
def test_the_name_of_a_folder_may_have_a_dot(build: Build, tmp_path: Path, name: str) -> None:
    outcome = build(manifest(weights=name))
    assert f"model.weights: there is no file `{name}`" in outcome.err
    write_shards(tmp_path / name)
    assert_plain(read(tmp_path, name))
    (tmp_path / "net.it").write_text("x")
    assert "`net.it` has an unknown file type" in refusal(tmp_path, "net.it")


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/x.bin", "a/b.bin", "x.txt", "", "a.bin\n", "..", 7])
def test_an_index_leads_to_no_file_elsewhere(tmp_path: Path, shard: Any) -> None:
    write_shards(tmp_path, **{"linear.bias": shard})
    save_file({"linear.bias": BIAS}, tmp_path.parent / "secret.safetensors")
    message = refusal(tmp_path, "model.safetensors.index.json")
    assert "is not the index of a checkpoint" in message
    assert "backend" not in message


@pytest.mark.parametrize(
    "own",
    [
        {"linear.qweight": torch.zeros(1, 4, dtype=torch.int32), "linear.scales": torch.ones(1, 4)},
        {"linear.weight": torch.zeros(16, 1, dtype=torch.uint8), "linear.weight.absmax": torch.ones(1)},
        {"linear.weight_packed": torch.zeros(4, 1, dtype=torch.int32), "linear.weight_scale": torch.ones(4, 1)},
    ],
)
def test_a_quantized_checkpoint_is_called_so(tmp_path: Path, own: dict[str, torch.Tensor]) -> None:
    save_file({"linear.bias": BIAS, **own}, tmp_path / "net.safetensors")
    message = refusal(tmp_path, "net.safetensors", cast=True)
    assert "the checkpoint is quantized, as `linear." in message
    assert "did you mean" not in message


def test_the_configuration_of_a_factory_does_not_say_how_a_checkpoint_is_packed(build: Build) -> None:
    """Models of transformers have one, also those that a factory makes."""
    packed = 'self.config = type("Config", (), {"quantization_config": {"quant_method": "fp8"}})'
    model = MODEL.replace("self.linear =", f"{packed}\n        self.linear =")
    outcome = build(manifest(weights="net.safetensors"), model=model, files={"net.safetensors": save(PLAIN)})
    assert outcome.code == 0, outcome.err
    weights = {"linear.qweight": torch.zeros(1, 4, dtype=torch.int32), "linear.bias": BIAS}
    outcome = build(manifest(weights="net.safetensors"), model=model, files={"net.safetensors": save(weights)})
    assert outcome.code == 2
    assert "as `linear.qweight` shows. It is read for a model of `huggingface`" in outcome.err


def test_a_tensor_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """safetensors gives the last one."""
    save_file(PLAIN, tmp_path / "net.safetensors")
    data = (tmp_path / "net.safetensors").read_bytes()
    entry = b'"linear.bias":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    length = int.from_bytes(data[:8], "little") + len(entry)
    (tmp_path / "net.safetensors").write_bytes(length.to_bytes(8, "little") + b"{" + entry + data[9:])
    said = 'cannot read `net.safetensors`: ValueError: the key "linear.bias" occurs twice'
    assert said in refusal(tmp_path, "net.safetensors")
    with pytest.raises(InputError, match="occurs twice"):
        read_tensors("net.safetensors", tmp_path / "net.safetensors", ())


_TWICE = b'{"weight_map": {"linear.bias": "model-00001-of-00002.safetensors", "linear.bias": "x.safetensors"}}'


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"weight_map": {}}', b'{"weight_map": 1}', b"\xff", _TWICE])
def test_a_damaged_index_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    assert "`model.safetensors.index.json`" in refusal(tmp_path, "model.safetensors.index.json")


def test_a_missing_shard_and_a_shard_without_its_tensor(tmp_path: Path) -> None:
    write_shards(tmp_path, **{"linear.bias": "model-00003.safetensors"})
    message = "`model-00003.safetensors`, a shard that `model.safetensors.index.json` names, is not a declared input"
    assert message in refusal(tmp_path, "model.safetensors.index.json")
    write_shards(tmp_path, **{"linear.bias": "model-00001-of-00002.safetensors"})
    message = "says that `model-00001-of-00002.safetensors` holds `linear.bias`, which it does not"
    assert message in refusal(tmp_path, "model.safetensors.index.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "is a pointer of git-lfs"),
        (b"\n<!-- saved -->\n<!DOCTYPE html>\n<html>", "is an HTML page"),
        (b"<HTML lang=en>", "is an HTML page"),
        (b"", "is empty"),
    ],
)
@pytest.mark.parametrize("name", ["net.safetensors", "net.pt", "model.safetensors.index.json"])
def test_what_a_failed_download_leaves_is_called_what_it_is(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert words in refusal(tmp_path, name)


def test_tensors_are_renamed_ignored_and_left_out(tmp_path: Path) -> None:
    renamed = {"model.layers.0.weight": WEIGHT, "model.bias": BIAS, "model.rotary.inv_freq": BIAS.clone()}
    save_file(renamed, tmp_path / "net.safetensors")
    rename = {"model.*": "linear.*", "model.layers.0.*": "linear.*"}
    entry: dict[str, Any] = {"file": "net.safetensors", "rename": rename, "ignore": ["*.inv_freq"]}
    assert_plain(read(tmp_path, entry))
    del renamed["model.bias"]
    save_file(renamed, tmp_path / "net.safetensors")
    entry["rename"] = {"model.layers.0.*": "linear.*"}
    assert "parameter `linear.bias` float32[4] is missing" in refusal(tmp_path, entry)
    assert read(tmp_path, {**entry, "optional": ["linear.b*"]}).keys() == {"linear.weight"}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"rename": {"modle.*": "*"}},
            "model.weights.rename.modle.*: `modle.*` matches no tensor of `net.safetensors`",
        ),
        ({"ignore": ["linear.bais"]}, "model.weights.ignore[0]: `linear.bais` matches no tensor"),
        ({"optional": ["head.*"]}, "model.weights.optional[0]: `head.*` matches no parameter or buffer of the module"),
        ({"rename": {"linear.*": "*.x", "*.weight": "y.*"}}, "give `linear.weight` different names"),
        (
            {"rename": {"linear.*": "*", "linear.bias": "weight"}},
            "`linear.bias` and `linear.weight` both become `weight`",
        ),
        ({"rename": {"linear.weight": "w"}}, "has `linear.weight` (in the module `w`), which is not a parameter"),
        ({"key": "model"}, "model.weights.key: `key` goes with files of torch.save"),
    ],
)
def test_rules_that_do_not_fit_are_named(tmp_path: Path, rules: dict[str, Any], message: str) -> None:
    save_file(PLAIN, tmp_path / "net.safetensors")
    assert message in refusal(tmp_path, {"file": "net.safetensors", **rules})


@pytest.mark.parametrize(
    ("name", "pattern", "texts"),
    [
        ("model.a.b", "model.*", ["a.b"]),
        ("model.a", "*", ["model.a"]),
        ("h.0.attn.weight", "h.*.attn.*", ["0", "weight"]),
        ("a.b.a.b", "*.b", ["a.b.a"]),
        ("a.b.c", "*.*", ["a", "b.c"]),
        ("ab", "a*b", [""]),
        ("a", "a*a", None),
        ("model", "model", []),
        ("amodel.x", "model.*", None),
        ("a" * 5000, "*a" * 40 + "b", None),
        (".layers." * 200_000, "*.layers.*.weight", None),
    ],
)
def test_stars_stand_for_as_little_as_they_can(name: str, pattern: str, texts: list[str] | None) -> None:
    assert stars(name, pattern) == texts


def test_one_file_may_fill_two_parts_of_a_module(tmp_path: Path) -> None:
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(8, 4), "b": torch.nn.Linear(8, 4)})
    save_file({"weight": WEIGHT, "bias": BIAS}, tmp_path / "layer.safetensors")
    entries = [{"file": "layer.safetensors", "rename": {"*": f"{part}.*"}} for part in "ab"]
    content = read(tmp_path, *entries, net=net)
    assert content.keys() == {"a.weight", "a.bias", "b.weight", "b.bias"}


@pytest.mark.parametrize("wrap", ["state_dict", "model"])
def test_a_state_dict_inside_a_training_checkpoint(tmp_path: Path, wrap: str) -> None:
    optimizer = {"state": {0: {"step": torch.tensor(1.0)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({wrap: PLAIN, "epoch": 3, "optimizer": optimizer}, tmp_path / "net.pt")
    assert_plain(read(tmp_path, "net.pt"))


def test_a_state_dict_beside_a_tensor_is_chosen_by_key(tmp_path: Path) -> None:
    torch.save({"model": PLAIN, "rng": torch.get_rng_state()}, tmp_path / "net.pt")
    assert "if it is the state dict, write `weights: {file: net.pt, key: model}`" in refusal(tmp_path, "net.pt")
    assert_plain(read(tmp_path, {"file": "net.pt", "key": "model"}))


def test_one_of_several_state_dicts_is_chosen_by_key(tmp_path: Path) -> None:
    other = {name: tensor + 1 for name, tensor in PLAIN.items()}
    torch.save({"model": other, "ema": PLAIN}, tmp_path / "net.pt")
    message = refusal(tmp_path, "net.pt")
    assert "`net.pt` holds several state dicts: `model`, `ema`" in message
    assert "`weights: {file: net.pt, key: model}`" in message
    assert_plain(read(tmp_path, {"file": "net.pt", "key": "ema"}))
    assert "it has `model`, `ema`" in refusal(tmp_path, {"file": "net.pt", "key": "emma"})


def test_a_state_dict_deep_in_a_checkpoint(tmp_path: Path) -> None:
    torch.save({"run": {"model": {"state_dict": PLAIN}}, "epoch": 3}, tmp_path / "net.pt")
    assert_plain(read(tmp_path, "net.pt"))
    assert "write `weights: {file: net.pt, key: run.model}`" in refusal(tmp_path, {"file": "net.pt", "key": "run"})
    assert_plain(read(tmp_path, {"file": "net.pt", "key": "run.model.state_dict"}))
    other = {name: tensor + 1 for name, tensor in PLAIN.items()}
    torch.save({"run": {"model": other, "v1.ema": PLAIN}}, tmp_path / "net.pt")
    message = refusal(tmp_path, "net.pt")
    assert "`net.pt` holds several state dicts: `run.model`, `run.v1.ema`" in message
    assert "choose one: `weights: {file: net.pt, key: run.model}`" in message
    assert_plain(read(tmp_path, {"file": "net.pt", "key": "run.v1.ema"}))
    message = refusal(tmp_path, {"file": "net.pt", "key": "run.ema"})
    assert "`net.pt` has no state dict `run.ema`" in message
    assert "it has `run.model`, `run.v1.ema`" in message
    own: dict[str, Any] = {"epoch": torch.tensor(3)}
    own["itself"] = own
    torch.save(own, tmp_path / "net.pt")
    assert "`itself` in `net.pt` is not a tensor" in refusal(tmp_path, "net.pt")


def test_a_checkpoint_that_needs_code_is_no_data(tmp_path: Path) -> None:
    """Whole modules, and the settings that training code saves beside a state dict."""
    path = f"{type(Path()).__module__}.PosixPath"
    for value, code in ((torch.nn.Linear(8, 4), "torch.nn.modules.linear.Linear"), (Path("run"), path)):
        for is_archive in (True, False):
            content = {"model": PLAIN, "of": value}
            torch.save(content, tmp_path / "net.pt", _use_new_zipfile_serialization=is_archive)
            message = refusal(tmp_path, "net.pt")
            assert f"`net.pt` holds more than data: it needs the code of `{code}`, which does not run" in message
            assert "save only the state dict: `torch.save(module.state_dict(), ...)`" in message


def test_a_file_of_another_kind_than_its_name_is_called_what_it_is(tmp_path: Path) -> None:
    torch.save(PLAIN, tmp_path / "net.safetensors")
    assert "it is a file of torch.save: give it a name that ends in .pt" in refusal(tmp_path, "net.safetensors")
    save_file(PLAIN, tmp_path / "net.pt")
    message = refusal(tmp_path, "net.pt")
    assert "`net.pt` is a safetensors file\n    give it a name that ends in .safetensors" in message
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:  # torch.jit.save writes such names
        archive.writestr("net/data.pkl", b"")
        archive.writestr("net/constants.pkl", b"")
    assert "`net.pt` holds a module of TorchScript, not a state dict" in refusal(tmp_path, "net.pt")


EXTRA = {**PLAIN, "_extra_state": None}


@pytest.mark.parametrize("other", [EXTRA, {"backbone": PLAIN}, {"layers": [PLAIN]}])
def test_a_state_dict_with_more_than_tensors_is_not_passed_over(tmp_path: Path, other: dict[str, Any]) -> None:
    torch.save({"model": other, "ema": PLAIN}, tmp_path / "net.pt")
    assert "`net.pt` holds several state dicts: `model`, `ema`" in refusal(tmp_path, "net.pt")
    message = refusal(tmp_path, {"file": "net.pt", "key": "model"})
    assert f"`{list(other)[-1]}` in `net.pt` is not a tensor" in message
    assert "list it under `ignore`" in message


def test_what_is_ignored_may_be_anything(tmp_path: Path) -> None:
    own: dict[Any, Any] = {}
    own["itself"] = own
    state = {**EXTRA, "sparse": BIAS.to_sparse(), "step": 3}
    torch.save({"state_dict": state, "epoch": torch.tensor(3), "hooks": own}, tmp_path / "net.pt")
    entry = {"file": "net.pt", "ignore": ["_extra_state", "s*"]}
    assert_plain(read(tmp_path, entry))
    assert_plain(read(tmp_path, {**entry, "key": "state_dict"}))
    assert "`sparse` in `net.pt` is a sparse tensor" in refusal(tmp_path, {**entry, "ignore": ["_*", "step"]})


def quantized() -> torch.Tensor:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = torch.nn.Sequential(torch.nn.Linear(4, 4))
    quantize_(layer, Int8WeightOnlyConfig())
    return layer[0].weight


UNUSUAL: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "nested": (lambda: torch.nested.nested_tensor([WEIGHT[0], WEIGHT[1, :2]]), "a nested tensor"),
    "meta": (lambda: torch.empty_like(WEIGHT, device="meta"), "on the meta device and has no content"),
    "torchao": (quantized, "a tensor of the class Int8Tensor"),
    "rows": (WEIGHT.to_sparse_csr, "a sparse tensor"),
}


@pytest.mark.parametrize("what", UNUSUAL)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_tensor_that_no_module_can_take_is_named(tmp_path: Path, what: str) -> None:
    make, message = UNUSUAL[what]
    torch.save({**PLAIN, "linear.weight": make()}, tmp_path / "net.pt")
    assert f"`linear.weight` in `net.pt` is {message}" in refusal(tmp_path, "net.pt")


def test_files_of_old_and_of_compressed_kinds_are_read(tmp_path: Path) -> None:
    torch.save(PLAIN, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_plain(read(tmp_path, "old.pt"))
    torch.save(PLAIN, tmp_path / "net.pt")
    with zipfile.ZipFile(tmp_path / "net.pt") as made, zipfile.ZipFile(tmp_path / "small.pt", "w", 8) as small:
        for entry in made.infolist():
            small.writestr(entry.filename, made.read(entry), zipfile.ZIP_DEFLATED)
    assert_plain(read(tmp_path, "small.pt"))


def test_a_damaged_tensor_of_torch_save_is_noticed(tmp_path: Path) -> None:
    torch.save(PLAIN, tmp_path / "net.pt")
    content = bytearray((tmp_path / "net.pt").read_bytes())
    place = content.index(WEIGHT.numpy().tobytes())
    content[place + 4] ^= 1
    (tmp_path / "net.pt").write_bytes(content)
    assert "cannot read `net.pt`: ValueError: its part net/data/0 is damaged" in refusal(tmp_path, "net.pt")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_are_converted_to_the_dtype_of_the_module(tmp_path: Path, dtype: torch.dtype, suffix: str) -> None:
    other = {name: tensor.to(dtype) for name, tensor in PLAIN.items()}
    (save_file if suffix == "safetensors" else torch.save)(other, tmp_path / f"net.{suffix}")
    assert_plain(read(tmp_path, f"net.{suffix}", cast=True))
    word = str(dtype).removeprefix("torch.")
    assert f"the weights are {word}, and the module is float32: 2 parameters" in refusal(tmp_path, f"net.{suffix}")


def test_a_number_that_the_dtype_cannot_hold_is_an_error(tmp_path: Path) -> None:
    save_file({**PLAIN, "linear.bias": torch.tensor([1.0, -1e5, float("inf"), 0.0])}, tmp_path / "net.safetensors")
    message = refusal(tmp_path, "net.safetensors", cast=True, net=Net().half())
    assert "model.dtype: `linear.bias` has numbers up to 1e+05, which float16 cannot hold" in message
    read(tmp_path, "net.safetensors", cast=True, net=Net().bfloat16())


def test_integers_and_small_floats_are_not_converted(tmp_path: Path) -> None:
    for dtype in (torch.int8, torch.float8_e4m3fn):
        save_file({**PLAIN, "linear.weight": WEIGHT.to(dtype)}, tmp_path / "net.safetensors")
        message = refusal(tmp_path, "net.safetensors", cast=True)
        assert f"`linear.weight` is float32 in the module and {str(dtype).removeprefix('torch.')} in" in message
        assert ("multiply it by its scale" in message) == dtype.is_floating_point


def test_names_of_a_tied_parameter_must_agree(tmp_path: Path) -> None:
    save_file({**PLAIN, "head.weight": WEIGHT.clone()}, tmp_path / "net.safetensors")
    content = read(tmp_path, "net.safetensors", net=Net(tied=True))
    assert content["head.weight"] is content["linear.weight"]
    save_file({**PLAIN, "head.weight": WEIGHT + 1}, tmp_path / "net.safetensors")
    assert "but they differ in `net.safetensors`" in refusal(tmp_path, "net.safetensors", net=Net(tied=True))


def test_names_of_a_tied_parameter_are_compared_bit_by_bit(tmp_path: Path) -> None:
    odd = torch.full((4, 8), float("nan"))
    save_file({"linear.bias": BIAS, "linear.weight": odd}, tmp_path / "a.safetensors")
    save_file({"head.weight": odd}, tmp_path / "b.safetensors")
    files = ("a.safetensors", "b.safetensors")
    assert read(tmp_path, *files, net=Net(tied=True))["head.weight"].isnan().all()
    save_file({"head.weight": WEIGHT}, tmp_path / "b.safetensors")
    assert "differ in `a.safetensors` and `b.safetensors`" in refusal(tmp_path, *files, net=Net(tied=True))


def test_an_absurd_header_of_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert "cannot read `net.safetensors`" in refusal(tmp_path, "net.safetensors")


def manifest(**model: Any) -> str:
    return json.dumps(
        {
            "schema": "executorch-model/v1",
            "name": "net",
            "model": {"factory": "model:create", **model},
            "methods": {"forward": {"example_inputs": [{"shape": [2, 8]}]}},
            "defaults": {"partitioners": ["xnnpack"]},
        }
    )


def test_a_converted_checkpoint_computes_what_eager_computes(build: Build, tmp_path: Path) -> None:
    """The two ways of loading: weights are bound when lowering, or `optional` makes the export read them."""
    half = {"old.weight": WEIGHT.half(), "old.bias": BIAS.half(), "step": torch.tensor(7)}
    save_file(half, tmp_path / "half.safetensors")
    files = {"net.safetensors": (tmp_path / "half.safetensors").read_bytes()}
    rules: dict[str, Any] = {"file": "net.safetensors", "rename": {"old.*": "linear.*"}, "ignore": ["step"]}
    inputs = torch.linspace(-1, 1, 16).reshape(2, 8)
    expected = torch.nn.functional.linear(inputs, WEIGHT, BIAS).relu()
    made = [build(manifest(dtype="float32", weights=rules), files=files)]
    made.append(build(manifest(dtype="float32", weights={**rules, "optional": ["linear.bias"]}), files=files))
    for outcome in made:
        assert outcome.code == 0, outcome.err
        ((output,),) = run(outcome.directory / "net.pte", [[("forward", [inputs])]], tmp_path)[0]
        torch.testing.assert_close(output, expected)
    assert made[0].read("net.pte") == made[1].read("net.pte")


def test_an_optional_parameter_keeps_the_value_of_the_factory(build: Build, tmp_path: Path) -> None:
    save_file({"linear.weight": WEIGHT}, tmp_path / "part.safetensors")
    files = {"net.safetensors": (tmp_path / "part.safetensors").read_bytes()}
    model = MODEL.replace("return Net()", "net = Net()\n    net.linear.bias.data.fill_(3)\n    return net")
    weights = {"file": "net.safetensors", "optional": ["linear.bias"]}
    outcome = build(manifest(weights=weights), files=files, model=model)
    assert outcome.code == 0, outcome.err
    ((output,),) = run(outcome.directory / "net.pte", [[("forward", [torch.zeros(2, 8)])]], tmp_path)[0]
    assert torch.equal(output, torch.full((2, 4), 3.0))


def test_a_hub_folder_computes_what_transformers_computes(build: Build, tmp_path: Path) -> None:
    """bfloat16, in shards behind links, with one key of the configuration changed."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "hub", max_shard_size="16KB")
    changed = {"rms_norm_eps": 0.01, "rope_parameters.rope_theta": 100.0}
    description = {
        "schema": "executorch-model/v1",
        "name": "net",
        "model": {
            "huggingface": {"class": "AutoModelForCausalLM", "config": {"file": "net/config.json", "set": changed}},
            "weights": "net",
            "dtype": "float32",
        },
        "methods": {"forward": {"example_inputs": [{"shape": [1, 4], "dtype": "int64"}]}},
        "defaults": {"partitioners": ["xnnpack"]},
    }
    links = tmp_path / "links" / "net"
    links.mkdir(parents=True)
    for file in (tmp_path / "hub").iterdir():
        (links / file.name).symlink_to(file)
    outcome = build(json.dumps(description), "--root", str(links.parent))
    assert outcome.code == 0, outcome.err
    reference = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "hub",
        dtype=torch.float32,
        rms_norm_eps=0.01,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    tokens = torch.tensor([[3, 1, 4, 1]])
    ((output,),) = run(outcome.directory / "net.pte", [[("forward", [tokens])]], tmp_path)[0]
    with torch.no_grad():
        torch.testing.assert_close(output, reference(tokens).logits, rtol=1e-4, atol=1e-4)
    data = outcome.json("net.index.json")["inputs"]["data"]
    assert sorted(data) == sorted(f"net/{name}" for name in ["config.json", *names_of_checkpoint(tmp_path / "hub")])


def names_of_checkpoint(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.name.startswith("model")]


SIZES = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
PATCHES = {**SIZES, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
OTHER_FORMS: dict[str, dict[str, Any]] = {
    "ViTModel": PATCHES,
    "MixtralForCausalLM": {**SIZES, **HEADS, "num_local_experts": 3},
    "GraniteMoeForCausalLM": {**SIZES, **HEADS, "num_local_experts": 2, "num_experts_per_tok": 1},
    "NomicBertModel": {**SIZES, "num_attention_heads": 2},
    "GteModel": {**SIZES, "num_attention_heads": 2},
    "LlavaForConditionalGeneration": {
        "text_config": {"model_type": "llama", **SIZES, **HEADS},
        "vision_config": {"model_type": "clip_vision_model", **PATCHES},
    },
}


def of_transformers(kind: str) -> Any:
    cls = getattr(pytest.importorskip("transformers"), kind)
    return cls(cls.config_class(**OTHER_FORMS[kind]))


@pytest.mark.parametrize("kind", OTHER_FORMS)
def test_transformers_may_store_a_model_in_another_form(kind: str, tmp_path: Path) -> None:
    """Its names, and whether the module or the file has one tensor for several, such as all experts, or queries and
    keys, are those of the first release of the model."""
    model = of_transformers(kind)
    model.save_pretrained(tmp_path / "net", max_shard_size="5KB")
    assert (tmp_path / "net/model.safetensors.index.json").exists()
    torch.save(model.state_dict(), tmp_path / "own.pt")
    state = model.state_dict()
    files = sorted((tmp_path / "net").glob("*.safetensors"))
    torch.save({name: x for file in files for name, x in load_file(file).items()}, tmp_path / "hub.pt")
    for weights in ("net", "own.pt", "hub.pt", {"file": "net", "rename": {"*": "*"}}):
        content = read(tmp_path, weights, net=model)
        assert content.keys() == state.keys()
        for name, tensor in state.items():
            assert torch.equal(content[name], tensor), name


@pytest.mark.parametrize("kind", ["ViTModel", "MixtralForCausalLM"])
def test_a_module_may_hold_models_of_transformers(kind: str, tmp_path: Path) -> None:
    net = torch.nn.ModuleDict({"first": of_transformers(kind), "second": of_transformers(kind)})
    for name, model in net.items():
        model.save_pretrained(tmp_path / name)
    weights = [{"file": name, "rename": {"*": f"{name}.*"}} for name in net]
    content, state = read(tmp_path, *weights, net=net), net.state_dict()
    assert content.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(content[name], tensor), name


def test_parts_of_a_tensor_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model = of_transformers("MixtralForCausalLM")
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    expert, whole = "model.layers.0.block_sparse_moe.experts.1.w2.weight", "model.layers.0.mlp.experts.down_proj"

    def refused(**changed: torch.Tensor | None) -> str:
        content = {name: x for name, x in {**stored, **changed}.items() if x is not None}
        save_file(content, tmp_path / "net.safetensors")
        return refusal(tmp_path, "net.safetensors", net=model, cast=True)

    of = f"`{expert}`, a part of the parameter `{whole}`, is"
    assert f"{of} float32[8, 13] in `net.safetensors`" in refused(**{expert: torch.ones(8, 13)})
    assert f"{of} float16[8, 12] in `net.safetensors`" in refused(**{expert: stored[expert].half()})
    assert f"parameter `{whole}` float32[3, 8, 12] is missing" in refused(**{expert: None})
    assert f"and `{whole}` both become `{whole}`" in refused(**{whole: torch.ones(3, 8, 12)})


def test_a_tensor_of_several_that_does_not_fit_is_named(tmp_path: Path) -> None:
    model = of_transformers("NomicBertModel")
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    fused = next(name for name in stored if "qkv" in name)
    save_file({**stored, fused: torch.ones(23, 8)}, tmp_path / "net.safetensors")
    said = refusal(tmp_path, "net.safetensors", net=model, cast=True)
    assert f"`{fused}`, a part of the parameter `" in said
    assert "is float32[23, 8] in `net.safetensors`" in said
    assert "it has to be float32[24, 8]" in said
