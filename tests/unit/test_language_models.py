"""What a task writes into the plan of a language model, and what a runner's contract says about it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from etbuild import plugins
from etbuild.cli.main import main
from etbuild.errors import InputError
from etbuild.key.declared import Inputs
from etbuild.manifest import plugin_sections, validate
from etbuild.plan.part import Part
from etbuild.plan.plan import Plan, from_manifest
from etbuild.plan.step_plans import read_plan
from etkit.local.build import BuildOptions, build
from etkit.running.generation.tokenizer_files import preferred
from etkit.running.verbs import generate
from etkit.running.verbs.generate import Text
from etplugins.tokenizer.files import unknown_tokens
from etplugins.transformers.parts import settings_of
from tests.helpers import depth_estimation

OPERATORS = "executorch.extension.llm.custom_ops.custom_ops"


def planned(tmp_path: Path, huggingface: dict[str, Any], **keys: Any) -> Plan:
    manifest = {"schema": "executorch-model/v1", "name": "net", "model": {"huggingface": huggingface}, **keys}
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(manifest))
    return from_manifest(validate.load(path).data)


def as_json(part: Part) -> Any:
    return part.to_json()


def wanted(**cache: Any) -> dict[str, Any]:
    return {"task": "text-generation", "cache": {"max_length": 64, **cache}}


def test_a_task_writes_a_method_of_dynamic_length(tmp_path: Path) -> None:
    method = as_json(planned(tmp_path, wanted(max_seq_length=16)).methods["forward"])
    tokens, position = method["example_inputs"]
    assert (tokens["shape"], position["shape"]) == ([1, 8], [1])
    assert tokens["dtype"] == position["dtype"] == "int64"
    assert method["dynamic_shapes"] == [[None, {"dim": "seq", "min": 1, "max": 16}], None]


def test_a_method_decode_takes_one_token(tmp_path: Path) -> None:
    methods = planned(tmp_path, wanted(), methods={"prefill": {}, "decode": {}}, share_mutable_buffers=True).methods
    assert as_json(methods["decode"])["dynamic_shapes"] == [None, None]
    assert as_json(methods["decode"])["example_inputs"][0]["shape"] == [1, 1]
    assert as_json(methods["prefill"])["dynamic_shapes"][0][1]["max"] == 64


def test_a_cache_of_the_caller_has_static_shapes_and_a_method_for_one_token(tmp_path: Path) -> None:
    methods = planned(tmp_path, wanted(kind="external", max_seq_length=16)).methods
    assert [*methods] == ["decode", "forward"]
    for name, length in (("forward", 16), ("decode", 1)):
        tokens, positions, caches = as_json(methods[name])["example_inputs"]
        assert tokens["shape"] == positions["shape"] == [1, length]
        assert caches == {"of_model": "caches", "length": length}
        assert not any(as_json(methods[name])["dynamic_shapes"])


def test_each_adapter_has_a_method_for_one_token_with_a_cache_of_the_caller(tmp_path: Path) -> None:
    manifest = {
        "huggingface": wanted(kind="external", max_seq_length=16),
        "adapters": {"fr": "fr"},
        "weights": "net.safetensors",
    }
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps({"schema": "executorch-model/v1", "name": "net", "model": manifest}))
    methods = from_manifest(validate.load(path).data).methods
    assert {name: as_json(method)["example_inputs"][0]["shape"] for name, method in methods.items()} == {
        "forward": [1, 16],
        "decode": [1, 1],
        "forward_fr": [1, 16],
        "decode_fr": [1, 1],
    }


def test_planning_a_cache_of_the_caller_needs_what_reports_its_names(tmp_path: Path) -> None:
    assert "interface" in planned(tmp_path, wanted(kind="external", max_seq_length=16)).report_parts
    assert "etplugins.applications" in plugin_sections.needed(validate.load(tmp_path / "model.yaml").data)


@pytest.mark.parametrize("cache", [{}, {"kind": "external", "max_seq_length": 16}])
def test_a_method_verify_returns_all_scores(tmp_path: Path, cache: dict[str, Any]) -> None:
    plan = planned(tmp_path, wanted(**cache), methods={"forward": {}, "verify": {}}, share_mutable_buffers=True)
    forward, verify = (as_json(plan.methods[name]) for name in ("forward", "verify"))
    assert verify == {**forward, "entry": "verify"}


@pytest.mark.parametrize("cache", [{}, {"kind": "external", "max_seq_length": 16}])
def test_a_draft_takes_one_token_and_nothing_drafts_by_itself(tmp_path: Path, cache: dict[str, Any]) -> None:
    methods: dict[str, Any] = {"forward": {}, "guess": {"entry": "draft"}}
    drafting = {**wanted(**cache), "draft_layers": 2}
    plan = planned(tmp_path, drafting, methods=methods, share_mutable_buffers=True)
    guess = as_json(plan.methods["guess"])
    assert as_json(plan)["model"]["huggingface"]["draft_layers"] == 2
    assert guess["example_inputs"][0]["shape"] == [1, 1]
    assert guess["example_inputs"][2:] == ([{"of_model": "draft_caches", "length": 1}] if cache else [])
    assert not any(guess["dynamic_shapes"])
    assert "draft" not in planned(tmp_path, wanted(**cache)).methods


def test_an_encoder_and_a_decoder_are_two_methods(tmp_path: Path) -> None:
    wanted = {"task": "seq2seq", "max_source_length": 40, "cache": {"max_length": 64}}
    plan = planned(tmp_path, wanted)
    encoder, decoder = (as_json(plan.methods[name]) for name in ("encoder", "text_decoder"))
    assert (encoder["entry"], decoder["entry"]) == ("encode", "decode")
    assert [each.get("shape") for each in encoder["example_inputs"]] == [[1, 16]]
    assert decoder["example_inputs"][1] == {"of_model": "encoder_outputs", "length": 16}
    source = {"dim": "source", "min": 1, "max": 40}
    assert encoder["dynamic_shapes"] == [[None, source]]
    assert decoder["dynamic_shapes"] == [None, [None, source, None], None]


def test_a_model_for_images_has_three_methods_and_its_plan_can_be_read_again(tmp_path: Path) -> None:
    cache = {"max_length": 64, "max_seq_length": 16}
    plan = planned(tmp_path, {"task": "image-text-to-text", "cache": cache}, runner="executorch-multimodal/v1")
    inputs = {name: as_json(method)["example_inputs"] for name, method in plan.methods.items()}
    assert inputs["vision_encoder"] == [{"of_model": "pixel_values"}]
    assert inputs["token_embedding"][0]["shape"] == [1, 8]
    assert inputs["text_decoder"][0] == {"of_model": "embeddings", "length": 8}
    assert main(["plan", str(tmp_path / "model.yaml"), f"--plan={tmp_path / 'plan'}"]) == 0
    assert read_plan(tmp_path / "plan", type(plan)) == plan


def test_features_need_no_cache_and_have_one_method(tmp_path: Path) -> None:
    wanted = {"task": "feature-extraction", "max_source_length": 40}
    plan = planned(tmp_path, {**wanted, "pooling": "none", "normalize": False})
    assert as_json(plan.methods["forward"])["dynamic_shapes"] == [[None, {"dim": "seq", "min": 1, "max": 40}]]
    assert [each["shape"] for each in as_json(plan.methods["forward"])["example_inputs"]] == [[1, 16]]
    assert as_json(plan)["model"]["huggingface"] == {"class": "AutoModel", "config": {}, "cache": None, **wanted}
    pooled = planned(tmp_path, {**wanted, "pooling": "last", "normalize": True})
    assert as_json(pooled)["model"]["huggingface"].items() >= {"pooling": "last", "normalize": True}.items()
    assert main(["plan", str(tmp_path / "model.yaml"), f"--plan={tmp_path / 'plan'}"]) == 0
    assert read_plan(tmp_path / "plan", type(pooled)) == pooled


@pytest.mark.parametrize(("length", "said"), [({}, "task"), *(({"max_source_length": n}, "length") for n in (1, 8))])
def test_a_spoken_text_without_a_range_is_an_error_of_its_length(
    length: dict[str, int], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        planned(tmp_path, {"task": "text-to-speech", **length})
    [problem] = error.value.problems
    messages = {"task": "needs `max_source_length`", "length": "speaks texts of 8 tokens or more, of several lengths"}
    assert messages[said] in problem.message
    assert problem.path == ("model", "huggingface", "max_source_length" if length else "task")
    assert said == "task" or problem.hint == "write 9 or more"
    planned(tmp_path, {"task": "text-to-speech", "max_source_length": 9})


def test_inputs_of_the_manifest_stay(tmp_path: Path) -> None:
    inputs = [{"shape": [1, 3], "dtype": "int64"}, {"shape": [1], "dtype": "int64"}]
    methods = planned(tmp_path, wanted(), methods={"forward": {"example_inputs": inputs}}).methods
    assert as_json(methods["forward"])["example_inputs"][0]["shape"] == [1, 3]
    assert as_json(methods["forward"])["dynamic_shapes"] == [None, None]


def test_what_a_task_writes_may_be_written_out(tmp_path: Path) -> None:
    explicit = {"class": "AutoModelForCausalLM", "attention": "custom_sdpa", "logits": "last"}
    short, long = wanted(kind="custom"), {**wanted(kind="custom", max_seq_length=64), **explicit}
    assert planned(tmp_path, short).to_json() == planned(tmp_path, long).to_json()


def test_a_task_of_a_plugin_that_is_missing_is_an_error_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth_estimation.provide(monkeypatch)
    monkeypatch.setattr(plugins.Plugin, "is_here", property(lambda self: self.name != "depth"))
    with pytest.raises(InputError) as error:
        planned(tmp_path, {"task": depth_estimation.NAME})
    [problem] = error.value.problems
    assert problem.path == ("model", "huggingface", "task")
    assert "the program needs the plug-in `depth`" in problem.message
    with pytest.raises(InputError, match="goes with the tasks"):  # the message lists the tasks that are here
        planned(tmp_path, {"task": "image-classification", "max_source_length": 4})


@pytest.mark.parametrize("kind", ["custom", "ring", "quantized"])
def test_a_cache_of_executorch_loads_its_operators(tmp_path: Path, kind: str) -> None:
    plan = planned(tmp_path, wanted(kind=kind, max_seq_length=16))
    assert plan.lower_plan.custom_ops.modules == plan.export_plan.custom_ops.modules == (OPERATORS,)
    assert planned(tmp_path, wanted()).custom_ops.modules == ()


def test_a_tokenizer_exports_and_lowers_nothing_again(tmp_path: Path) -> None:
    plan, other = planned(tmp_path, wanted()), planned(tmp_path, wanted(), tokenizer="tokenizer.json")
    assert other.export_plan == plan.export_plan
    assert other.lower_plan == plan.lower_plan
    assert other.data_names == {"tokenizer.json": ("tokenizer", 0)}


def test_a_constant_of_the_manifest_overrides_that_of_the_runner(tmp_path: Path) -> None:
    constants = {"get_eos_ids": [3], "get_answer": 42}
    plan = planned(tmp_path, wanted(), runner="executorch-llm/v1", constant_methods=constants)
    assert plan.export_plan.runner is not None
    assert plan.export_plan.runner.said == ("get_eos_ids",)


def test_a_plugin_may_provide_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth_estimation.provide(monkeypatch)
    plan = planned(tmp_path, {"task": depth_estimation.NAME})
    settings = settings_of(plan.model)
    assert settings is not None
    assert settings.model_class == depth_estimation.CLASS
    assert as_json(plan.methods["forward"])["example_inputs"] == [{"of_model": "image"}]
    assert plan.plugins_of("export") > {"etplugins.depth", "etplugins.transformers"}
    with pytest.raises(InputError, match=r"did you mean `relative-depth`\?"):
        planned(tmp_path, {"task": "relative-dept"})


def test_the_plans_of_a_language_model_can_be_read_again(tmp_path: Path) -> None:
    plan = planned(tmp_path, wanted(kind="custom"), runner="executorch-llm/v1", tokenizer=["a.json", "b.json"])
    plans = [f"--{part}={tmp_path / part}" for part in ("plan", "export-plan", "lower-plan")]
    assert main(["plan", str(tmp_path / "model.yaml"), *plans]) == 0
    for part, expected in (("plan", plan), ("export-plan", plan.export_plan), ("lower-plan", plan.lower_plan)):
        assert read_plan(tmp_path / part, type(expected)) == expected


def test_a_word_outside_of_the_vocabulary_is_an_error() -> None:
    content = json.dumps({"model": {"vocab": {"a": 0, "b": 4}}}).encode()
    [problem], notes = unknown_tokens("tokenizer.json", content, 4, ("tokenizer", 0))
    assert "has a token with the id 4, and the vocabulary of the model has 4" in problem.message
    assert notes == []


def test_an_added_token_outside_of_the_vocabulary_is_a_note() -> None:
    """The words may be halves of surrogate pairs, and numbers may be large."""
    content = json.dumps({"added_tokens": [{"id": 4}], "model": {"vocab": {"\ud83d": 0}, "max": 10**30}}).encode()
    problems, [note] = unknown_tokens("tokenizer.json", content, 4, ("tokenizer", 0))
    assert problems == []
    assert "adds a token with the id 4, and the vocabulary of the model has 4" in note


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b'{"model": {}, "model": {}}'])
def test_a_tokenizer_that_is_not_json_is_an_error(content: bytes) -> None:
    [problem], _ = unknown_tokens("tokenizer.json", content, 4, ("tokenizer", 0))
    assert "is not JSON" in problem.message


def test_a_failed_download_of_a_tokenizer_is_an_error_before_the_build(tmp_path: Path) -> None:
    plan = planned(tmp_path, wanted(), tokenizer="tokenizer.model")
    (tmp_path / "tokenizer.model").write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(InputError, match=r"`tokenizer\.model` is an HTML page"):
        build(plan, Inputs(roots=[tmp_path]), tmp_path / "out", BuildOptions(lambda _: nullcontext()))


def test_a_character_is_printed_when_its_last_byte_is_there() -> None:
    text = Text(terminal=False)
    pieces = [bytes([byte]).decode("utf-8", "surrogateescape") for byte in "é\x1b".encode()]
    assert [text.add(piece) for piece in [*pieces, "\udcc3"]] == ["", "é", "\x1b", ""]
    assert text.add("", last=True) == "\ufffd"


def test_a_terminal_gets_no_control_characters() -> None:
    assert Text(terminal=True).add("a\n\t\x1b[2J\x9b") == "a\n\t\\x1b[2J\\x9b"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["merges.txt", "tokenizer.model", "tokenizer.json"], "tokenizer.json"),
        (["added_tokens.json", "tokenizer.model"], "tokenizer.model"),
        (["tokenizer_config.json", "tiny.bin"], "tiny.bin"),
        (["tokenizer_config.json"], None),
    ],
)
def test_the_runner_gets_the_file_of_the_tokenizer_that_it_reads(names: list[str], expected: str | None) -> None:
    assert preferred([f"net.tokenizer/{name}" for name in names]) == (expected and f"net.tokenizer/{expected}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is no PROMPT"),
        (["text", "--system", "be nice"], "`--system` goes with `--chat`"),
        (["text", "--shorten"], "`--shorten` goes with `--chat`"),
        (["--chat", "--tools", "none.json"], "--tools: none.json cannot be read: No such file or directory"),
        (["--chat", "--tools", "empty.json"], "--tools: empty.json has no tool\n    name a tool, or leave out"),
        (
            ["--chat"],
            "`tokenizer` names no file with a chat template\n    add chat_template.jinja, or the tokenizer_conf",
        ),
    ],
)
def test_a_chat_needs_a_template(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned(tmp_path, wanted(), runner="executorch-llm/v1", tokenizer=["tokenizer.json", "tokenizer_config.json"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "empty.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    assert main(["generate", str(tmp_path / "model.yaml"), *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"role": "tool", "name": "w"}', "`content` is not text"),
        ('{"role": "tool", "content": 5}', "`content` is not text"),
        ('[{"role": "tool", "content": "a"}, {"content": null, "role": "tool"}]', "`content` is not text"),
        ('[{"role": "tool", "content": "a"}, {"role": "user", "content": "b"}]', "each object needs the role `tool`"),
        (' { "role": "tools", "content": "a"}', "each object needs the role `tool`"),
        ('{"role": "tool", "content": "a"', "Expecting ',' delimiter"),
        ('[{"role": "tool", "content": "a"}', "Expecting ',' delimiter"),
    ],
)
def test_a_line_that_is_no_valid_result_of_a_tool_is_an_error(line: str, reason: str) -> None:
    with pytest.raises(InputError, match=r"^a line is not a valid result of a tool: .*\n    write such") as raised:
        generate._results(line)
    assert reason in str(raised.value)


@pytest.mark.parametrize("line", ["hello", "[]", "5", "{}", '{"a": "role"}', "what is {role}?", '"role"'])
def test_what_a_user_says_is_no_result_of_a_tool(line: str) -> None:
    assert generate._results(line) is None


def test_results_of_tools_are_an_object_or_a_list() -> None:
    result = {"content": "sunny", "role": "tool"}
    assert generate._results(json.dumps(result)) == [result]
    assert generate._results(json.dumps([result, result])) == [result, result]
