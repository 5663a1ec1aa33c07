"""Hugging Face models that need only a configuration: ExecuTorch's runtime gives the same outputs as transformers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.conftest import MANIFESTS
from tests.helpers import commands, single_calls
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import Call, run
from tests.integration.conftest import Build

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
}
SMALL_QWEN = {**TINY, "num_hidden_layers": 4, "num_key_value_heads": 1, "num_experts": 2, "moe_intermediate_size": 8}
COMPRESSED = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5}
CACHED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    # Keys and values are compressed, and have other sizes than heads
    "deepseek_v3": ({**TINY, **COMPRESSED, "first_k_dense_replace": 1}, {}),
    # All heads have the same keys and values
    "falcon": ({key: TINY[key] for key in TINY if key != "intermediate_size"}, {}),
    # Experts, which give the attention a word on their own outputs
    "mixtral": ({**TINY, "num_local_experts": 3, "num_key_value_heads": 1}, {"kind": "custom"}),
}
TIED = {"model_type": "llama", "tie_word_embeddings": True, **TINY}


def manifest(huggingface: dict[str, Any], inputs: int = 1, **model: Any) -> str:
    example_inputs = [{"shape": [1, 4], "dtype": "int64"}, {"shape": [1], "dtype": "int64"}][:inputs]
    return json.dumps(
        {
            "schema": "executorch-model/v1",
            "name": "net",
            "model": {"huggingface": huggingface, **model},
            "methods": {"forward": {"example_inputs": example_inputs}},
            "defaults": {"partitioners": ["xnnpack"]},
        }
    )


def reference(name: str) -> Any:
    """Returns the example's model, made with transformers only."""
    model = yaml.safe_load(MANIFESTS[name].read_text())["model"]
    config = model["huggingface"]["config"]
    if isinstance(config, str):
        config = json.loads((MANIFESTS[name].parent / config).read_text())
    cls = getattr(transformers, model["huggingface"]["class"])
    module = cls(cls.config_class(**config)).eval()
    module.load_state_dict(load_file(MANIFESTS[name].parent / model["weights"]))
    return module


def logits(prompt: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = reference("llama")(input_ids=prompt).logits
    return output


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_llama_prefill_gives_the_outputs_of_transformers(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    prompts = [tokens(length, seed=length) for length in (1, 2, 8, 64)]
    sessions = [[("prefill", [prompt, torch.tensor([0])])] for prompt in prompts]
    outputs = run(cli_built("llama"), sessions, tmp_path)
    assert_close(outputs, [[[logits(prompt)]] for prompt in prompts])


def test_llama_decode_step_by_step_gives_the_outputs_of_transformers(
    cli_built: Callable[[str], Path], tmp_path: Path
) -> None:
    prompt = tokens(64, seed=1)
    steps = [("decode", [prompt[:, i : i + 1], torch.tensor([i])]) for i in range(64)]
    [outputs] = run(cli_built("llama"), [steps], tmp_path)
    assert_close(torch.cat([output for (output,) in outputs], dim=1), logits(prompt))


def test_llama_prefill_continues_a_prompt(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    prompt = tokens(20, seed=2)
    calls = [("prefill", [prompt[:, :12], torch.tensor([0])]), ("prefill", [prompt[:, 12:], torch.tensor([12])])]
    [outputs] = run(cli_built("llama"), [calls], tmp_path)
    assert_close(torch.cat([output for (output,) in outputs], dim=1), logits(prompt))


def test_llama_decode_continues_with_the_cache_of_prefill(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    prompt = tokens(20, seed=3)
    steps = [("decode", [prompt[:, i : i + 1], torch.tensor([i])]) for i in range(12, 20)]
    [outputs] = run(cli_built("llama"), [[("prefill", [prompt[:, :12], torch.tensor([0])]), *steps]], tmp_path)
    assert_close(torch.cat([output for (output,) in outputs], dim=1), logits(prompt))


def test_llama_has_one_set_of_weights(cli_built: Callable[[str], Path]) -> None:
    report = json.loads(cli_built("llama").with_suffix(".report.json").read_text())
    module = reference("llama")
    stored = sum(tensor.nbytes for tensor in (*module.parameters(), module.model.rotary_emb.inv_freq))
    assert sum(report["bytes"]["external"]["weights"].values()) == stored
    assert sum(report["bytes"]["constants"]) < 1000
    assert sum(report["bytes"]["named_data"].values()) < 1000  # one row for the means of norms


def test_bert_gives_the_outputs_of_transformers(cli_built: Callable[[str], Path], tmp_path: Path) -> None:
    module = reference("bert")
    calls: list[list[Call]] = []
    expected = []
    for length in (2, 16, 64):
        ids, mask = tokens(length), (torch.arange(length) < length - length // 4).long().unsqueeze(0)
        with torch.no_grad():
            outputs = module(input_ids=ids, attention_mask=mask)
        calls.append([("forward", [ids, mask])])
        expected.append([[outputs.last_hidden_state, outputs.pooler_output]])
    assert_close(run(cli_built("bert"), calls, tmp_path), expected)


def test_random_weights_are_those_of_the_seed_and_can_be_saved(build: Build, tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TIED))
    module.save_pretrained(tmp_path / "saved")
    saved = {file: (tmp_path / "saved" / file).read_bytes() for file in ("config.json", "model.safetensors")}
    assert "lm_head.weight" not in load_file(tmp_path / "saved/model.safetensors")  # tied to the embedding
    wanted = {"class": "AutoModelForCausalLM", "cache": {"max_length": 16}}
    drawn = build(manifest({**wanted, "config": TIED}, inputs=2, seed=3))
    loaded = build(manifest({**wanted, "config": "config.json"}, inputs=2, weights="model.safetensors"), files=saved)
    assert (drawn.code, loaded.code) == (0, 0), drawn.err + loaded.err
    assert drawn.read("net.pte") == loaded.read("net.pte")
    prompt = tokens(4, vocab_size=32)
    with torch.no_grad():
        expected = module.eval()(input_ids=prompt).logits
    [[[output]]] = run(drawn.directory / "net.pte", [[("forward", [prompt, torch.tensor([0])])]], tmp_path)
    assert_close(output, expected)


def test_a_decoder_without_a_cache_reads_all_tokens_and_a_mask_by_keyword(build: Build, tmp_path: Path) -> None:
    wanted = json.loads(manifest({"class": "LlamaForCausalLM", "config": TINY}, seed=5))
    mask = {"shape": [1, 4], "dtype": "int64", "fill": "ones"}
    wanted["methods"]["forward"]["example_kwargs"] = {"attention_mask": mask}
    made = build(json.dumps(wanted))
    assert made.code == 0, made.err
    torch.manual_seed(5)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)).eval()
    inputs = [tokens(4, vocab_size=32), torch.tensor([[1, 1, 1, 0]])]
    with torch.no_grad():
        expected = module(inputs[0], attention_mask=inputs[1]).logits
    assert_close(run(made.directory / "net.pte", [[("forward", inputs)]], tmp_path), [[[expected]]])


EXPERTS = f"""
import torch, transformers

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.MixtralConfig(**{TINY}, num_key_value_heads=1, num_local_experts=3)
        self.net = transformers.MixtralModel(config)

    def forward(self, x):
        return self.net(x, use_cache=False).last_hidden_state

def create():
    return Net()
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_mixture_of_experts_in_a_factory_gets_advice(jobs: str, build: Build) -> None:
    wanted = json.loads(manifest({}))
    wanted["model"] = {"factory": "model:create"}
    made = build(json.dumps(wanted), "--jobs", jobs, model=EXPERTS)
    assert made.code in (1, 2)
    assert 'call `model.set_experts_implementation("batched_mm")` in the factory' in made.err


def test_a_mixture_of_experts_gives_the_outputs_of_transformers(build: Build, tmp_path: Path) -> None:
    """transformers computes experts with an operator that ExecuTorch lacks, unless it is told otherwise."""
    config = {**TINY, "model_type": "mixtral", "num_local_experts": 3, "num_key_value_heads": 1}
    wanted = json.loads(manifest({"class": "AutoModelForCausalLM", "config": config}, seed=5))
    wanted["methods"]["forward"]["dynamic_shapes"] = [[None, {"dim": "seq", "min": 2, "max": 8}]]
    made = build(json.dumps(wanted))
    assert made.code == 0, made.err
    torch.manual_seed(5)
    module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    prompts = [tokens(length, vocab_size=32, seed=length) for length in (4, 7)]
    with torch.no_grad():
        expected = [[[module(prompt).logits]] for prompt in prompts]
    sessions: list[list[Call]] = [[("forward", [prompt])] for prompt in prompts]
    assert_close(run(made.directory / "net.pte", sessions, tmp_path), expected)


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_holds_what_the_model_caches(name: str, build: Build, tmp_path: Path) -> None:
    config, cache = CACHED[name]
    config = {**config, "model_type": name}
    wanted = {"class": "AutoModelForCausalLM", "config": config, "cache": {"max_length": 8, **cache}}
    made = build(manifest(wanted, inputs=2, seed=5))
    assert made.code == 0, made.err
    torch.manual_seed(5)
    module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    prompt = tokens(8, vocab_size=32)
    with torch.no_grad():
        expected = module(prompt).logits
    calls = [("forward", [prompt[:, start : start + 4], torch.tensor([start])]) for start in (0, 4)]
    [outputs] = run(made.directory / "net.pte", [calls], tmp_path)
    assert_close(torch.cat([output for (output,) in outputs], dim=1), expected)


@pytest.mark.parametrize(
    ("huggingface", "message"),
    [
        ({"class": "LamaForCausalLM"}, "transformers has no model `LamaForCausalLM`\n    did you mean `LlamaForCausal"),
        ({"class": "LlamaConfig"}, "transformers has no model `LlamaConfig`"),
        (
            {"class": "LlamaForCausalLM", "config": {"hidden_sizes": 16}},
            "huggingface.config.hidden_sizes: `LlamaConfig` has no `hidden_sizes`\n    did you mean `hidden_size`?",
        ),
        (
            {"class": "LlamaForCausalLM", "config": {"hidden_size": "large"}},
            "model.huggingface.config: making a `LlamaForCausalLM` of the configuration failed: Strict",
        ),
        ({"class": "AutoModel", "config": TINY}, "needs a `model_type` of transformers; the configuration has none"),
        (
            {"class": "AutoModel", "config": {"model_type": "lama"}},
            "the configuration has lama\n    did you mean `llama`?",
        ),
        (
            {"class": "BertModel", "config": {"model_type": "llama"}},
            "`BertModel` takes configurations of the `model_type` bert, not llama",
        ),
        ({"class": "BertModel", "config": "no.json"}, "model.huggingface.config: there is no file `no.json`"),
        (
            {"class": "BertModel", "config": TINY, "cache": {"max_length": 8}},
            "model.huggingface.cache: `BertModel` is not a decoder with a cache",
        ),
        (
            {"class": "LlamaForCausalLM", "config": TINY, "cache": {"max_length": 17}},
            "huggingface.cache.max_length: max_length 17 is more than the configuration's `max_position_embeddings`",
        ),
        (
            {
                "class": "LlamaForCausalLM",
                "config": TINY,
                "cache": {"max_length": 8, "max_seq_length": 4, "kind": "ring"},
            },
            "huggingface.cache.kind: `LlamaConfig` has no layers with a sliding window\n    write `kind: custom`",
        ),
        (
            {"class": "Gemma2ForCausalLM", "config": TINY, "cache": {"max_length": 8, "kind": "custom"}},
            "`custom_sdpa` cannot compute the attention of this model: transformers allows it no other attention",
        ),
        (
            {
                "task": "text-generation",
                "config": {"model_type": "t5", "d_model": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32},
                "cache": {"max_length": 8, "kind": "custom"},
            },
            "Unrecognized configuration class",
        ),
        (
            {
                "class": "LlamaForCausalLM",
                "config": {**TINY, "dtype": "bfloat16"},
                "cache": {"max_length": 8, "kind": "quantized"},
            },
            "cache.kind: a quantized cache needs a model in float32; this one is in bfloat16\n    write `dtype: f",
        ),
        (
            {
                "class": "DeepseekV3ForCausalLM",
                "config": {**TINY, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
                "cache": {"max_length": 8, "kind": "custom"},
            },
            "`custom_sdpa` cannot compute the attention of this model: a layer caches",
        ),
        (
            {"class": "DiffLlamaForCausalLM", "config": TINY, "cache": {"max_length": 8, "kind": "custom"}},
            "`DiffLlamaAttention` does not attend to what its cache holds",
        ),
        (
            {"class": "DogeForCausalLM", "config": TINY, "cache": {"max_length": 8, "kind": "custom"}},
            "`custom_sdpa` cannot compute the attention of this model: it computes with what its cache holds before",
        ),
        (
            {"class": "Qwen3NextForCausalLM", "config": SMALL_QWEN, "cache": {"max_length": 8}},
            "model.huggingface.cache: the states of this model cannot be kept",
        ),
        (
            {"class": "DeepseekV4ForCausalLM", "config": TINY, "cache": {"max_length": 8}},
            "a layer of the model caches something other than keys, values and states: heavily_compressed_attention",
        ),
        (
            {"class": "OpenAIGPTLMHeadModel", "cache": {"max_length": 8}, "config": {"n_embd": 16, "n_head": 2}},
            "model.huggingface.cache: `OpenAIGPTLMHeadModel` reads no cache",
        ),
        (
            {"class": "XLMWithLMHeadModel", "cache": {"max_length": 8}, "config": {"emb_dim": 16, "n_heads": 2}},
            "model.huggingface.cache: `XLMWithLMHeadModel` reads no cache",
        ),
    ],
)
def test_mistakes_are_named(huggingface: dict[str, Any], message: str, build: Build) -> None:
    outcome = build(manifest(huggingface, inputs=2))
    assert outcome.code in (1, 2)
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_a_class_that_cannot_be_exported_is_named(build: Build) -> None:
    outcome = build(manifest({"class": "LongformerModel", "config": {**TINY, "attention_window": 4}}))
    assert outcome.code == 1
    assert "model.huggingface: exporting `forward` failed" in outcome.err
    assert "`LongformerModel` cannot be exported as it is with this configuration: write a factory" in outcome.err


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("num_hiden_layers", "the configuration has no `num_hiden_layers`\n    did you mean `num_hidden_layers`?"),
        ("text_config.hidden_size", "has no nested configuration `text_config`"),
        ("rope_parameters.theta", "the configuration has no `rope_parameters.theta`\n    did you mean `rope_theta`?"),
        ("hidden_size.x", "the configuration has no nested configuration `hidden_size`"),
    ],
)
def test_a_key_to_change_that_nothing_reads_is_named(key: str, message: str, build: Build) -> None:
    config = {"file": "config.json", "set": {key: 2}}
    files = {"config.json": transformers.LlamaConfig(**TINY).to_json_string().encode()}
    outcome = build(manifest({"class": "LlamaForCausalLM", "config": config}), files=files)
    assert outcome.code == 2
    assert "model.huggingface.config.set." in outcome.err
    assert message in outcome.err


@pytest.mark.parametrize(
    ("kind", "changed", "reads"),
    [
        ("GPT2LMHeadModel", {"n_layer": 3, "hidden_size": 8}, lambda c: (c.n_layer, c.n_embd, c.hidden_size)),
        (
            "LlavaForConditionalGeneration",
            {"text_config.num_hidden_layers": 8},
            lambda c: c.text_config.num_hidden_layers,
        ),
    ],
)
def test_changed_keys_reach_nested_and_renamed_configurations(
    kind: str, changed: dict[str, Any], reads: Callable[[Any], Any], tmp_path: Path
) -> None:
    from etbuild.key.declared import Inputs
    from etplugins.transformers.huggingface_config import make_config
    from etplugins.transformers.parts import ConfigFile

    cls = getattr(transformers, kind)
    cls.config_class().save_pretrained(tmp_path)
    config = make_config(transformers, cls, ConfigFile("config.json", changed), Inputs(roots=[tmp_path]))
    assert reads(config) in [(3, 8, 8), 8]


def test_a_key_without_a_default_that_the_model_reads_is_taken(tmp_path: Path) -> None:
    from etbuild.key.declared import Inputs
    from etplugins.transformers.huggingface_config import make_config
    from etplugins.transformers.parts import ConfigFile

    transformers.DebertaV2Config().save_pretrained(tmp_path)
    for wanted in ({"position_buckets": 16}, ConfigFile("config.json", {"position_buckets": 16})):
        made = make_config(transformers, transformers.DebertaV2Model, wanted, Inputs(roots=[tmp_path]))
        assert made.position_buckets == 16


def test_a_configuration_that_is_not_a_mapping_is_named(build: Build) -> None:
    outcome = build(manifest({"class": "BertModel", "config": "list.json"}), files={"list.json": b"[1]"})
    assert outcome.code == 2
    assert "model.huggingface.config: `list.json` is not a configuration" in outcome.err


NAMING_CODE = {
    "auto_map": {"AutoModel": "owner/repo--modeling.Model"},
    "attn_implementation": "owner/repo:attend",
    "_attn_implementation": "owner/repo:attend",
    "_attn_implementation_internal": "owner/repo:attend",
    "experts_implementation": "owner/repo:experts",
    "_experts_implementation": "owner/repo:experts",
    "_experts_implementation_internal": "owner/repo:experts",
}


@pytest.mark.parametrize("nested", [False, True])
def test_keys_of_a_file_that_name_code_are_left_out(nested: bool, tmp_path: Path) -> None:
    from etbuild.key.declared import Inputs
    from etplugins.transformers.huggingface_config import make_config
    from etplugins.transformers.parts import ConfigFile

    config = json.loads(transformers.LlavaConfig(text_config=transformers.LlamaConfig(**TINY)).to_json_string())
    changed = config["text_config"] if nested else config
    changed |= NAMING_CODE
    (tmp_path / "config.json").write_text(json.dumps(config))
    cls = transformers.LlavaForConditionalGeneration
    made = make_config(transformers, cls, ConfigFile("config.json", {}), Inputs(roots=[tmp_path]))
    for part in (made, made.text_config):
        assert (part._attn_implementation, part._experts_implementation) == (None, None)
        assert not hasattr(part, "auto_map")


@pytest.mark.parametrize("key", NAMING_CODE)
@pytest.mark.parametrize("where", ["config", "nested", "set"])
def test_a_manifest_cannot_name_code_of_others(key: str, where: str, tmp_path: Path) -> None:
    from etbuild.errors import InputError
    from etbuild.key.declared import Inputs
    from etplugins.transformers.huggingface_config import make_config
    from etplugins.transformers.parts import ConfigFile

    transformers.LlamaConfig(**TINY).save_pretrained(tmp_path)
    own = {key: NAMING_CODE[key]}
    nested = {"rope_parameters": own}
    wanted = ConfigFile("config.json", own) if where == "set" else own if where == "config" else nested
    with pytest.raises(InputError, match=rf"`{key}` may name code of others|has no `{key}`"):
        make_config(transformers, transformers.LlamaModel, wanted, Inputs(roots=[tmp_path]))


LOADS_CODE = re.compile(
    r"(?<!def )\b(get_kernel|get_kernel_hub|lazy_load_kernel|load_and_register_attn_kernel|lazy_import_flash_attention|"
    r"get_class_from_dynamic_module|import_module|__import__)\((?!\s*[\"'])"
)
# Files of transformers that load code whose name is a value, each with what gives the name.
NAMED_BY = {
    "modeling_utils.py": "attn_implementation",
    "modeling_flash_attention_utils.py": "attn_implementation",
    "integrations/hub_kernels.py": "attn_implementation",
    "integrations/msa_attention.py": "attn_implementation",
    "models/auto/auto_factory.py": "auto_map",
    "models/auto/configuration_auto.py": "auto_map, or a name of transformers' own table",
    "processing_utils.py": "the file of a processor, which no build reads",
    "models/auto/feature_extraction_auto.py": "auto_map of a processor's file",
    "models/auto/image_processing_auto.py": "auto_map of a processor's file",
    "models/auto/processing_auto.py": "auto_map of a processor's file",
    "models/auto/tokenization_auto.py": "auto_map of a tokenizer's file",
    "models/auto/video_processing_auto.py": "auto_map of a processor's file",
    "dynamic_module_utils.py": "auto_map",
    "utils/generic.py": "a class of transformers",
    "utils/import_utils.py": "a class of transformers",
}


def test_no_other_key_leads_transformers_to_code() -> None:
    root = Path(transformers.__file__).parent
    left_out = ("cli/", "exporters/", "generation/continuous_batching/", "pipelines/", "testing_utils.py")  # not run
    found = set()
    for file in root.rglob("*.py"):
        name = file.relative_to(root).as_posix()
        if not name.startswith(left_out) and LOADS_CODE.search(file.read_text("utf-8")):
            found.add(name)
    assert found == NAMED_BY.keys()


@pytest.mark.parametrize(
    ("key", "value", "made"),
    [
        ("time_step_limit", [0.0, {"__float__": "Infinity"}], (0.0, float("inf"))),
        ("num_hidden_layers", -1, "`num_hidden_layers` is -1, which is not a number of layers"),
    ],
)
def test_values_of_a_file(key: str, value: Any, made: Any, tmp_path: Path) -> None:
    """`save_pretrained` writes an object for a number that JSON has no form for."""
    from etbuild.errors import InputError
    from etbuild.key.declared import Inputs
    from etplugins.transformers.huggingface_config import make_config
    from etplugins.transformers.parts import ConfigFile

    transformers.Mamba2Config().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tmp_path / "config.json").read_text()) | {key: value}))
    file = ConfigFile("config.json", {})
    if isinstance(made, str):
        with pytest.raises(InputError, match=re.escape(made)):
            make_config(transformers, transformers.Mamba2Model, file, Inputs(roots=[tmp_path]))
        return
    config = make_config(transformers, transformers.Mamba2Model, file, Inputs(roots=[tmp_path]))
    assert tuple(getattr(config, key)) == made


def test_what_to_install_without_transformers(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text(manifest({"class": "BertModel"}))
    code = "import sys; sys.modules['transformers'] = None; from etbuild.cli.main import main; "
    code += "sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "build", str(tmp_path / "model.yaml"), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "model.huggingface: `huggingface` needs transformers" in done.stderr
    assert "pip install 'transformers" in done.stderr


def distributions(path: Path) -> dict[str, Any]:
    done = commands.etbuild("plan", path)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["inputs"]["toolchain"]["distributions"]
    return found


def test_the_version_of_transformers_is_in_the_key() -> None:
    found = distributions(MANIFESTS["bert"])
    assert found["transformers"]["version"] == transformers.__version__
    assert "transformers" not in distributions(MANIFESTS["mlp"])


def test_a_quantized_llama_is_small_and_near(build: Build, tmp_path: Path) -> None:
    """torchao quantizes a copy of the module. The copy must call its own layers."""
    config = {**TINY, "model_type": "llama", "hidden_size": 64, "intermediate_size": 128}
    wanted = {"class": "AutoModelForCausalLM", "config": config, "cache": {"max_length": 16}}
    said = json.loads(manifest(wanted, inputs=2, seed=3))
    said["defaults"]["quantize"] = {"torchao": [{"config": "8da8w", "modules": ["model.layers.*"]}]}
    made = build(json.dumps(said))
    assert made.code == 0, made.err
    torch.manual_seed(3)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    assert len(made.read("net.pte")) < 0.7 * sum(parameter.nbytes for parameter in module.parameters())
    prompt = tokens(4, vocab_size=32)
    with torch.no_grad():
        expected = module(input_ids=prompt).logits
    [[[output]]] = run(made.directory / "net.pte", [[("forward", [prompt, torch.tensor([0])])]], tmp_path)
    assert 1e-5 < float((output - expected).norm() / expected.norm()) < 0.05


_SMALL_SWIN = {"image_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}


def test_an_image_of_a_class_is_returned_row_by_row(tmp_path: Path) -> None:
    """ExecuTorch's program had its numbers in another order than PyTorch."""
    kind = "Swin2SRForImageSuperResolution"
    made = single_calls.model(kind, {"model_type": "swin2sr", **_SMALL_SWIN})
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    path = single_calls.folder_of(
        made,
        tmp_path,
        {"class": kind, "config": _SMALL_SWIN},
        methods={"forward": {"example_inputs": [{"shape": [1, 3, 16, 16]}]}},
    )
    commands.build(path, tmp_path / "out")
    [[[found]]] = run(tmp_path / "out/net.pte", [[("forward", [image])]], tmp_path)
    with torch.no_grad():
        expected = made(image).reconstruction
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
