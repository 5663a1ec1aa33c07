"""The inputs from which fuzzing starts, for each target: valid files, and inputs that were findings once."""

from __future__ import annotations

import io
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from etbuild.files import digests
from etbuild.manifest import validate
from etbuild.plan.plan import from_manifest
from etbuild.plan.positions import positions_to_json
from etkit.building import lockfile
from etkit.kept_results import Kept, Results
from tests.conftest import MANIFESTS, variant
from tests.helpers import packed
from tests.unit.indexes import make_index

DIRECTORY = Path(__file__).with_name("seeds")
FINDINGS = Path(__file__).with_name("findings")
_GOLDEN = Path(__file__).parents[1] / "golden/manifests"


def seeds(target: str) -> list[bytes]:
    """Returns the inputs that a target starts from, always in the same order."""
    files = [*DIRECTORY.glob(f"{target}-*"), *FINDINGS.glob(f"{target}-*")]
    return [*_made(target), *(path.read_bytes() for path in sorted(files))]


def _made(target: str) -> list[bytes]:
    """Returns the inputs that are made here, so that they always have the current format."""
    match target:
        case "manifest":
            paths = [*dict.fromkeys(MANIFESTS.values()), *sorted(_GOLDEN.glob("*.yaml"))]
            return [data for data in (path.read_bytes() for path in paths) if len(data) < 8000]
        case "plan":
            plans = [from_manifest(validate.load(path, variant=variant(name)).data) for name, path in MANIFESTS.items()]
            parts = [part for whole in plans for part in (whole, whole.export_plan, whole.lower_plan)]
            return [digests.canonical_json(part.to_json()) for part in parts]
        case "positions":
            return [digests.canonical_json(positions_to_json(validate.load(MANIFESTS["mlp"]).positions))]
        case "lines":
            places = [["model.py", 3, "forward", "return x * 2"]]
            methods = {"forward": [["mul", "aten.mul.Tensor", 0], ["sin", "aten.sin.default", 0]]}
            return [digests.canonical_json({"schema": "executorch-lines/v1", "places": places, "methods": methods})]
        case "index" | "json":
            return [digests.canonical_json(make_index(tensors=2))]
        case "package":
            return _documents()
        case "delta":
            blob = {"size": 99, "sha256": "0" * 64}
            base, patch = {"file": "net.pte", **blob}, {"patch": blob}
            entries = {
                "net.pte": {**blob, "how": "patch", "base": base, **patch},
                "net.weights.ptd": {**blob, "how": "keep", "base": base},
                "net.index.json": {**blob, "how": "fetch"},
            }
            delta = {"schema": "executorch-delta/v1", "programs": {"net": entries}, "bytes": 1, "whole_bytes": 2}
            return [json.dumps(delta).encode()]
        case "patch":
            import bsdiff4

            return [bsdiff4.diff(b"old program" * 9, new) for new in (b"new program" * 9, b"")]
        case "policy":
            keys = {"builders": ["https://*"], "licenses": ["MIT"], "lockfiles": ".", "drivers": ["0" * 64]}
            toolchain = {"torch": ["2.13.0"]}
            return [json.dumps({"schema": "executorch-policy/v1", "toolchain": toolchain, **keys}).encode()]
        case "docker_config":
            auths = {
                "registry.example.com": {"auth": "bWU6eA=="},
                "https://index.docker.io/v1/": {"identitytoken": "t"},
            }
            return [json.dumps({"auths": auths, "credHelpers": {"h": "x"}}).encode(), b'{"credsStore": "none-such"}']
        case "results":
            listed = [Kept("qualify/size", "failed", "a|b", {"value": 0.5}), Kept("forward/example", "passed")]
            return [Results("net", "0" * 64, listed, qualifies=False).to_json()]
        case "lock":
            return [digests.canonical_json(lockfile.lock(make_index(tensors=0)))]
        case "checkpoint_index":
            return [json.dumps({"metadata": {"total_size": 4}, "weight_map": {"w": "a.safetensors"}}).encode()]
        case "model_config":
            text = {"num_hidden_layers": 4, "layer_types": ["a", "a", "b", "a"], "max_position_embeddings": 64}
            packed_by = {"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}}
            several = {"text_config": text, "vision_config": {"model_type": "clip_vision_model"}}
            configs: list[dict[str, Any]] = [
                {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": 1, **text, **packed_by},
                {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", **several},
                {
                    "architectures": ["T5ForConditionalGeneration"],
                    "model_type": "t5",
                    "num_layers": 6,
                    "dtype": "float16",
                },
                {"architectures": ["ViTModel"], "num_channels": 3, "image_size": [32, 48]},
                {"architectures": ["BertModel"], "vocab_size": 9, "max_position_embeddings": 64},
            ]
            return [json.dumps(config).encode() for config in configs]
        case "adapter_config":
            config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "use_dora": False}
            patterns = {"rank_pattern": {"head|q": 4}, "alpha_pattern": {"^head": 2.5}, "exclude_modules": r"^v\.\d+"}
            return [
                json.dumps({**config, "target_modules": ["q_proj", "v_proj"]}).encode(),
                json.dumps({**config, "target_modules": "all-linear", **patterns}).encode(),
            ]
        case "gguf":
            head = b"GGUF" + struct.pack("<IQQ", 3, 1, 3)
            values = _text("general.alignment") + struct.pack("<II", 4, 32)
            values += _text("general.architecture") + struct.pack("<I", 8) + _text("llama")
            values += _text("tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("b")
            header = head + values + _text("output_norm.weight") + struct.pack("<IQIQ", 1, 4, 0, 0)
            return [header + bytes(-len(header) % 32) + bytes(16)]
        case "packed":
            return [_packed(pack, config) for pack, config in _packings()]
        case "torch_file":
            return [
                _saved({"w": [1.0, 2.0]}),
                _saved({"state_dict": {"w": [1.0]}, "epoch": 1}),
                _saved({"w": [1.0]}, old=True),
            ]
        case _:
            return []


def _packings() -> list[tuple[packed.Pack, dict[str, Any]]]:
    """Ways in which weights are packed, with `quantization_config`."""
    compressed, blocks = {"quant_method": "compressed-tensors"}, {"block_structure": [8, 32]}
    return [
        (packed.gptq(), {"quant_method": "gptq", "bits": 4}),
        (packed.gptq(3, order=True), {"quant_method": "gptq", "bits": 3}),
        (packed.awq(), {"quant_method": "awq", "bits": 4}),
        (packed.compressed(symmetric=False), compressed),
        (packed.fp4(16, 300.0), compressed),
        (packed.fp8(8, 32, ".weight_scale"), {**compressed, "config_groups": {"a": {"weights": blocks}}}),
        (packed.fp8(8, 32), {"quant_method": "fp8", "weight_block_size": [8, 32]}),
        (packed.fp4(16, 300.0, of_nvidia=True), {"quant_method": "modelopt"}),
        (packed.nf4(nested=True), {"quant_method": "bitsandbytes"}),
        (packed.llm_int8, {"quant_method": "bitsandbytes"}),
        (packed.of_torchao(4), {"quant_method": "torchao"}),
    ]


def _packed(pack: packed.Pack, config: dict[str, Any]) -> bytes:
    """A packed weight, behind a line with `quantization_config`."""
    import torch
    from safetensors.torch import save

    weight = torch.randn((16, 64), generator=torch.Generator().manual_seed(5))
    stored = {f"x{end}": tensor.contiguous() for end, tensor in pack(weight).tensors.items()}
    content: bytes = save(stored)
    return json.dumps(config).encode() + b"\n" + content


def _text(content: str) -> bytes:
    """A text in a GGUF file."""
    return struct.pack("<Q", len(content)) + content.encode()


def _documents() -> list[bytes]:
    """The documents of a package."""
    from etkit.registry.oci import package
    from tests.helpers.builds import write_build

    with tempfile.TemporaryDirectory() as directory:
        made = package.make([write_build(Path(directory), "net", pte=b"old program" * 9)], {}).package
    return [made.documents[each] for each in sorted(made.documents)]


def _saved(content: dict[str, Any], old: bool = False) -> bytes:
    """What torch.save writes. Lists of numbers become tensors."""
    import torch

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: tensors(part) for key, part in value.items()}
        return torch.tensor(value) if isinstance(value, list) else value

    made = io.BytesIO()
    torch.save(tensors(content), made, _use_new_zipfile_serialization=not old)
    return made.getvalue()
