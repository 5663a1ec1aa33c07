"""`checks.prompts`: answers of a language model's program contain what the manifest says, and eager PyTorch chooses the
same tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etbuild.cli import main
from tests.helpers.language_models import CACHES, model, project, transformers
from tests.integration.test_chat import CHATML, END, files

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

PROMPTS = ["hello there", "what is 12?"]
TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
LINEAR = {"defaults": {"partitioners": ["xnnpack"], "quantize": {"torchao": [{"config": "8da4w", "group_size": 32}]}}}
VARIANTS = {"small": LINEAR, "runs_on": {"constant_methods": {"get_eos_ids": [0]}}}
# A user's turn ends as in ChatML, and an answer with the token 1.
TEMPLATE = CHATML.replace("'<|im_end|>' + '\\n'", "('</s>' if message.role == 'assistant' else '<|im_end|>\\n')")
TOKENS = 24
CACHE = {**CACHES["custom"], "max_length": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project, to which a test writes its manifest and its prompts. Its programs are built once."""
    directory = tmp_path_factory.mktemp("prompts")
    project(directory, "qwen", CACHE)
    files(directory, CHATML)
    return directory


def asked_of(
    folder: Path, capfd: pytest.CaptureFixture[str], lines: list[str], *options: str, **asked: Any
) -> tuple[int, dict[str, Any], str]:
    """The exit code of `etbuild test`, its result for the prompts, and its errors."""
    checks = {"prompts": {"file": "prompts.jsonl", "tokens": TOKENS, **asked}}
    project(folder, "qwen", CACHE, tokenizer=TOKENIZER, checks=checks, variants=VARIANTS)
    files(folder, TEMPLATE)
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    words = ("--filter", "checks/prompts/*", "--json", "--cache-dir", str(folder / "cache"), *options)
    capfd.readouterr()
    code = main.main(["test", str(folder / "model.yaml"), *words])
    captured = capfd.readouterr()
    return code, json.loads(captured.out)["tests"][0] if captured.out else {}, captured.err


def said(folder: Path, prompt: str) -> str:
    """What transformers answers."""
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": prompt}]
    ids = reader.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    made = model("qwen").generate(ids, max_new_tokens=TOKENS, do_sample=False, eos_token_id=[1, END])
    return str(reader.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


def test_answers_are_those_of_transformers_and_a_quantized_variant_chooses_others(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = [said(folder, each) for each in PROMPTS]
    assert all(answers)
    assert answers[0] != answers[1]
    pairs = zip(PROMPTS, answers, strict=True)
    lines = [json.dumps({"prompt": prompt, "must_contain": [answer]}) for prompt, answer in pairs]
    code, result, err = asked_of(folder, capfd, ["", *lines], min_same_choice=1)
    assert (code, result["state"]) == (0, "passed"), (result, err)
    assert result["measured"] == {"prompts": 2, "same_choice": 1}
    code, result, err = asked_of(folder, capfd, lines, "--variant", "small", min_same_choice=1)
    assert (code, result["state"], result["measured"]["same_choice"] < 1) == (3, "failed", True), (result, err)
    places = ("model.yaml:1:", "checks.prompts.min_same_choice: eager PyTorch")  # the manifest has one line
    assert all(each in result["detail"] for each in places), result
    assert 'prompts.jsonl:1: "hello there": ' in result["detail"], result
    swapped = [json.dumps({"prompt": PROMPTS[0], "must_contain": [answers[1]]}), lines[1]]
    code, result, _ = asked_of(folder, capfd, swapped, must_contain=["no such text"])
    assert (code, result["state"], result["measured"]) == (3, "failed", {"prompts": 2})
    found = [line.strip() for line in result["detail"].splitlines() if "does not contain" in line]
    assert [("prompts.file: prompts.jsonl:1" in line, "must_contain: prompts.jsonl:" in line) for line in found] == [
        (True, False),
        (False, True),
        (False, True),
    ], found


def test_an_answer_that_is_cut_or_ends_where_the_runner_does_not_stop_is_said(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert TEMPLATE != CHATML
    lines = [json.dumps({"prompt": each}) for each in ("stop", "hello there")]  # one ends with the token 1, one is cut
    code, result, err = asked_of(folder, capfd, lines, must_contain=["no such text"])
    assert (code, result["detail"].count("does not contain")) == (3, 2), (result, err)
    assert result["detail"].count(f", which was cut after {TOKENS} tokens, does not contain") == 1, result
    code, result, err = asked_of(folder, capfd, lines, "--variant", "runs_on", min_same_choice=1)
    assert (code, result["measured"]["same_choice"]) == (3, 1), (result, err)
    assert "answers end with a token that is not among `get_eos_ids`, [0]" in result["detail"], result
    assert ('"stop": the answer' in result["detail"], '"hello there": the answer' in result["detail"]) == (True, False)


def test_other_tokens_than_those_of_the_runner_are_noted(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"prompt": "XYZ is in no word"})]
    code, result, err = asked_of(folder, capfd, lines, min_same_choice=1)
    assert code == 0, (result, err)
    assert result["detail"].startswith("1 prompt, the same choices for 100.0%\nnote: prompts.jsonl:1: "), result
    assert "ExecuTorch's tokenizer makes other tokens" in result["detail"], result


@pytest.mark.parametrize(
    ("lines", "asked", "problem"),
    [
        (['{"prompt": "a"}'], {}, 'prompts.jsonl:1: "a": nothing says what the answer has to be'),
        (['{"prompt": "a"}'], {"min_same_choice": 0}, 'prompts.jsonl:1: "a": nothing says'),
        (
            ['{"prompt": "a", "must_contain": ["b"]}', '{"prompt": "c", "must_contain": []}'],
            {},
            'prompts.jsonl:2: "c": nothing says',
        ),
        (['{"prompt": "a", "must_contain": ["b", ""]}'], {}, "prompts.jsonl:1: not an object with `prompt`"),
        (["{}"], {"min_same_choice": 1}, "prompts.jsonl:1: not an object with `prompt`"),
        (['{"prompt": "a", "contains": []}'], {"min_same_choice": 1}, "prompts.jsonl:1: not an object with `prompt`"),
        (['{"prompt": "a", "must_contain": "b"}'], {}, "prompts.jsonl:1: not an object with `prompt`"),
        (['{"prompt": "a"}', "a"], {"min_same_choice": 1}, "prompts.jsonl:2: not JSON: Expecting value"),
        (['\ufeff{"prompt": "a"}'], {"min_same_choice": 1}, "prompts.jsonl:1: not JSON: Unexpected UTF-8 BOM"),
        (['{"prompt": "a", "prompt": "b"}'], {"min_same_choice": 1}, "prompts.jsonl:1: the key "),
        ([""], {"min_same_choice": 1}, "prompts.jsonl: the file has no prompt"),
        ([json.dumps({"prompt": "a" * 999})], {"must_contain": ["a"]}, "tokens, and the cache of the program"),
    ],
)
def test_prompts_that_cannot_be_asked_are_an_error(
    folder: Path, capfd: pytest.CaptureFixture[str], lines: list[str], asked: dict[str, Any], problem: str
) -> None:
    _, result, _ = asked_of(folder, capfd, lines, **asked)
    assert (result["state"], "model.yaml:1:" in result["detail"], problem in result["detail"]) == (
        "failed",
        True,
        True,
    ), result
