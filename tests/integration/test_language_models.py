"""Language models from a manifest: ExecuTorch's runtime and its own runners say what transformers says."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers import commands
from tests.helpers.language_models import CACHES, LETTERS, VOCABULARY, model, project, tokenizer, tokenizers
from tests.helpers.once import made_once
from tests.helpers.random_tokens import tokens
from tests.helpers.runtime import run

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

BYTES = LETTERS[:26] + "WÃÄÅÆ" + "".join(map(chr, range(0x122, 0x122 + 29)))  # bytes of characters, as GPT-2 names them
PROMPT = "hello World and more text"  # longer than a call
RUNNER = """
import sys
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

program, tokenizer, prompt, count = sys.argv[1:]
config = GenerationConfig(echo=False, max_new_tokens=int(count), temperature=0.0)
text = []
TextLLMRunner(program, tokenizer).generate(prompt, config, text.append)
print("\\nTEXT " + "".join(text))
"""
NATIVE = """
import sys
from executorch.examples.models.llama.runner.native import NativeLlamaRunner, build_args_parser

program, config, tokenizer, prompt, length = sys.argv[1:]
arguments = ["--pte", program, "--params", config, "--tokenizer", tokenizer, "--kv_cache", "--max_len", length]
runner = NativeLlamaRunner(build_args_parser().parse_args(arguments))
print("\\nTOKENS", runner.text_completion(prompt, temperature=0))
"""


@pytest.fixture(scope="session")
def program(shared_directory: Path) -> Callable[[str, str], Path]:
    """Builds a language model with a kind of cache when it is first needed, and returns the path of its program."""

    def get(name: str, kind: str) -> Path:
        def make(partial: Path) -> None:
            commands.build(project(partial, name, CACHES[kind]), partial / "out")

        return made_once(shared_directory / f"{name}-{kind}", make) / "out/net.pte"

    return get


def scores(name: str, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(name)(input_ids=ids).logits
    return logits


def decoded(path: Path, ids: torch.Tensor, scratch: Path) -> torch.Tensor:
    """The scores of the last token of each call: two calls of several tokens, then one for each token."""
    cuts = [0, 10, 26, *range(27, ids.shape[1] + 1)]
    calls = [("forward", [ids[:, start:end], torch.tensor([start])]) for start, end in itertools.pairwise(cuts)]
    [outputs] = run(path, [calls], scratch)
    return torch.cat([output for (output,) in outputs])


def asked(ids: torch.Tensor) -> list[int]:
    """The positions whose scores `decoded` returns."""
    return [9, *range(25, ids.shape[1])]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen", "custom"),
        ("lfm2", "custom"),
        pytest.param("gemma", "ring", marks=pytest.mark.long),
        pytest.param("mistral", "static", marks=pytest.mark.long),
        pytest.param("mistral", "long", marks=pytest.mark.long),
        pytest.param("qwen3_5", "custom", marks=pytest.mark.long),
        pytest.param("mamba", "custom", marks=pytest.mark.long),
        pytest.param("bamba", "static", marks=pytest.mark.long),
        pytest.param("gpt_oss", "static", marks=pytest.mark.long),
        pytest.param("opt", "custom", marks=pytest.mark.long),  # it gets its positions
        pytest.param("opt", "static", marks=pytest.mark.long),
        pytest.param("xglm", "static", marks=pytest.mark.long),
        pytest.param("falcon", "static", marks=pytest.mark.long),  # it gets a mask of the length of the cache
        pytest.param("mpt", "static", marks=pytest.mark.long),  # it gets a number
        pytest.param("gpt_neo", "static", marks=pytest.mark.long),
        pytest.param("jetmoe", "static", marks=pytest.mark.long),
        pytest.param("llama4", "custom", marks=pytest.mark.long),
    ],
)
def test_a_cache_gives_the_scores_of_transformers(
    name: str, kind: str, program: Callable[[str, str], Path], tmp_path: Path
) -> None:
    ids = tokens(40, vocab_size=VOCABULARY, seed=3)
    expected = scores(name, ids)[0, asked(ids)]
    actual = decoded(program(name, kind), ids, tmp_path)
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.long("mistral-long")
def test_a_window_far_from_the_start_of_a_long_cache_is_right(
    program: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The operator reads a cache in blocks. Blocks that the window hides completely must not count."""
    ids = tokens(1100, vocab_size=VOCABULARY, seed=4)
    calls = [("forward", [ids[:, at : at + 16], torch.tensor([at])]) for at in range(0, 1100, 16)]
    [outputs] = run(program("mistral", "long"), [calls], tmp_path)
    expected = scores("mistral", ids)[0, -1:]
    torch.testing.assert_close(outputs[-1][0], expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.long("gemma-ring")
def test_a_ring_is_reused_several_times(program: Callable[[str, str], Path], tmp_path: Path) -> None:
    ids = tokens(64, vocab_size=VOCABULARY, seed=5)
    expected = scores("gemma", ids)[0, asked(ids)]
    actual = decoded(program("gemma", "ring"), ids, tmp_path)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.long
def test_a_quantized_cache_is_small_and_near(program: Callable[[str, str], Path], tmp_path: Path) -> None:
    ids = tokens(40, vocab_size=VOCABULARY, seed=3)
    expected = scores("gemma", ids)[0, asked(ids)]
    actual = decoded(program("gemma", "quantized"), ids, tmp_path)
    assert (actual - expected).abs().max() < 0.1 * expected.abs().max()
    assert (actual - expected).abs().max() > 0


def generated(name: str, prompt: str, count: int) -> list[int]:
    ids = torch.tensor([tokenizer().encode(prompt).ids])
    made = model(name).generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=VOCABULARY + 1)
    found: list[int] = made[0, ids.shape[1] :].tolist()
    return found


def output(code: str, word: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next(line for line in done.stdout.splitlines() if line.startswith(word)).removeprefix(word).strip()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen", "custom"),
        pytest.param("gemma", "ring", marks=pytest.mark.long),
    ],
)
def test_the_text_runner_says_what_transformers_says(name: str, kind: str, program: Callable[[str, str], Path]) -> None:
    path = program(name, kind)
    expected = generated(name, PROMPT, 24)
    assert len(set(expected)) > 3  # otherwise a wrong cache could pass
    until = expected.index(1) if 1 in expected else len(expected)
    text = output(RUNNER, "TEXT", path, path.with_suffix(".tokenizer") / "tokenizer.json", PROMPT, 24)
    assert text.replace("</s>", "") == tokenizer().decode(expected[:until], skip_special_tokens=False)


@pytest.mark.long
def test_two_commands_lead_from_a_checkpoint_of_a_hub_to_its_text(tmp_path: Path) -> None:
    """The checkpoint is in bfloat16 and has several shards, and all files are links, as in the cache of a hub."""
    module = model("qwen").to(torch.bfloat16)
    module.config.eos_token_id, module.config.dtype = 1, torch.bfloat16
    snapshot, blobs = tmp_path / "models--Us--Tiny/snapshots/1", tmp_path / "models--Us--Tiny/blobs"
    module.save_pretrained(blobs, max_shard_size="20KB")
    tokenizer().save(str(blobs / "tokenizer.json"))
    (blobs / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))  # as transformers writes
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert len(list(snapshot.glob("*.safetensors"))) > 1
    started = commands.etbuild("init", "--huggingface", snapshot, "-o", tmp_path)
    assert started.returncode == 0, started.stderr
    done = commands.etbuild("generate", tmp_path / "tiny.yaml", PROMPT, "--tokens", 24, "-o", tmp_path, "--no-cache")
    assert done.returncode == 0, done.stderr
    ids = torch.tensor([tokenizer().encode(PROMPT).ids])
    made = module.float().generate(ids, max_new_tokens=24, do_sample=False)
    expected = tokenizer().decode(made[0, ids.shape[1] :].tolist(), skip_special_tokens=False)
    assert done.stdout.strip() == expected.replace("</s>", "").strip()


@pytest.mark.long
def test_generate_begins_a_text_as_transformers_does_and_prints_characters_of_several_tokens(tmp_path: Path) -> None:
    path, made = project(tmp_path, "qwen", CACHES["custom"]), tokenizer(BYTES)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    made.save(str(tmp_path / "tokenizer.json"))
    done = commands.etbuild("generate", path, PROMPT, "--tokens", 24, "-o", tmp_path / "out", "--no-cache")
    assert done.returncode == 0, done.stderr
    ids = made.encode(PROMPT).ids
    assert ids[0] == 2
    found = model("qwen").generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=1)
    expected = made.decode(found[0, len(ids) :].tolist(), skip_special_tokens=False)
    assert not expected.isascii()
    assert done.stdout.strip() == expected.replace("</s>", "").strip()


@pytest.mark.long
def test_generate_runs_a_quantized_program_from_the_cache(tmp_path: Path) -> None:
    quantize = {"torchao": [{"config": "8da4w", "group_size": 32}, {"config": "int8", "layers": ["embedding"]}]}
    defaults = {"partitioners": ["xnnpack"], "quantize": quantize}
    path = project(tmp_path, "qwen", CACHES["custom"], defaults=defaults)
    arguments = ("generate", path, PROMPT, "--tokens", 4, "-o", tmp_path / "out", "--cache-dir", tmp_path / "cache")
    built, cached = commands.etbuild(*arguments), commands.etbuild(*arguments)
    assert built.returncode == cached.returncode == 0, built.stderr + cached.stderr
    assert cached.stdout == built.stdout
    empty = commands.etbuild(*(each if each != PROMPT else "" for each in arguments))
    assert empty.returncode == 2
    assert "error: the prompt is empty, and ExecuTorch's runner takes no such prompt" in empty.stderr


@pytest.mark.long
def test_the_llama_runner_says_what_transformers_says(program: Callable[[str, str], Path]) -> None:
    """It gives the whole prompt in one call. Without the configuration of the tokenizer, it does not stop at an end."""
    path, prompt = program("qwen", "custom"), PROMPT[:11]
    config = path.parents[1] / "config.json"
    config.write_text(json.dumps({"vocab_size": VOCABULARY}))
    expected = generated("qwen", prompt, 24)
    given = (path, config, path.with_suffix(".tokenizer") / "tokenizer.json", prompt, len(prompt) + 24)
    assert json.loads(output(NATIVE, "TOKENS", *given)) == expected


def test_the_contract_of_the_runner_is_in_the_report_and_the_index(program: Callable[[str, str], Path]) -> None:
    path = program("qwen", "custom")
    constants = {
        "enable_dynamic_shape": True,
        "get_bos_id": 2,
        "get_eos_ids": [1],
        "get_max_context_len": 64,
        "get_max_seq_len": 16,
        "get_n_layers": 2,
        "get_vocab_size": VOCABULARY,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": True,
    }
    assert json.loads(path.with_suffix(".report.json").read_text())["constant_methods"] == constants
    index = json.loads(path.with_suffix(".index.json").read_text())
    assert index["constant_methods"] == sorted(constants)
    [artifact] = [entry for entry in index["artifacts"] if entry["kind"] == "tokenizer"]
    assert artifact["file"] == "net.tokenizer/tokenizer.json"
    assert (path.parent / artifact["file"]).read_bytes() == (path.parents[1] / "tokenizer.json").read_bytes()


@pytest.mark.long("gemma-ring")
def test_two_builds_of_a_custom_cache_have_the_same_bytes(program: Callable[[str, str], Path], tmp_path: Path) -> None:
    other = tmp_path / "another" / "directory"
    commands.build(project(other, "gemma", CACHES["ring"]), other / "out")
    first = program("gemma", "ring")
    assert (other / "out/net.pte").read_bytes() == first.read_bytes()
    assert (other / "out/net.index.json").read_bytes() == first.with_suffix(".index.json").read_bytes()
