"""A build notes where the tokenizer's files say another beginning or end of a text than the program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etplugins.tokenizer import ends

WORDS = {"<s>": 0, "</s>": 1, "a": 2, "<|im_start|>": 3}
TOKENIZER = {"model": {"vocab": WORDS}, "added_tokens": [{"id": 4, "content": "<|im_end|>"}]}
CHAT = (
    "{% for each in messages %}<|im_start|>{{ each.role }}\n{{ each.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def noted(settings: dict[str, Any], constants: dict[str, object], template: str | None = None) -> list[str]:
    files = {"tokenizer.json": json.dumps(TOKENIZER).encode(), "tokenizer_config.json": json.dumps(settings).encode()}
    if template is not None:
        files["chat_template.jinja"] = template.encode()
    return [each.message for each in ends.notes(files, constants)]


@pytest.mark.parametrize(
    ("settings", "constants", "message"),
    [
        ({"eos_token": "</s>"}, {"get_eos_ids": [1]}, None),
        ({"eos_token": {"content": "<|im_end|>"}}, {"get_eos_ids": [1, 4]}, None),
        ({"eos_token": "no such word"}, {"get_eos_ids": [1]}, None),
        ({"eos_token": "</s>"}, {}, None),
        (
            {"eos_token": "<|im_end|>"},
            {"get_eos_ids": [1]},
            "the tokenizer ends a text with `<|im_end|>` (4), which is",
        ),
        ({"bos_token": "<s>"}, {"get_eos_ids": [1], "get_bos_id": 0}, None),
        ({"bos_token": "<s>"}, {"get_eos_ids": [1], "get_bos_id": 2}, "begins a text with `<s>` (0), and `get_bos_id`"),
        ({"bos_token": "<s>"}, {"get_eos_ids": [1], "get_bos_id": 2, "decoder_start_token_id": 2}, None),
    ],
)
def test_the_ends_of_a_text_are_those_of_the_tokenizer(
    settings: dict[str, Any], constants: dict[str, object], message: str | None
) -> None:
    found = noted(settings, constants)
    assert len(found) == (0 if message is None else 1)
    assert message is None or message in found[0]


@pytest.mark.parametrize(
    ("template", "ids", "count"),
    [
        (CHAT, [1, 4], 0),
        (CHAT, [1], 1),
        ("{{ messages[5].content }}", [1], 0),
        ("{% for %}", [1], 0),
        ("plain", [1], 0),
    ],
)
def test_the_end_of_a_reply_ends_a_text(template: str, ids: list[int], count: int) -> None:
    found = noted({}, {"get_eos_ids": ids}, template)
    assert len(found) == len(noted({"chat_template": template}, {"get_eos_ids": ids})) == count
    assert all(
        "a reply in a chat ends with `<|im_end|>` (4), which is not among `get_eos_ids`, [1]" in x for x in found
    )


def test_files_that_are_no_json_have_no_notes() -> None:
    files = {"tokenizer.json": b"[", "tokenizer_config.json": b"[]"}
    assert ends.notes(files, {"get_eos_ids": [1]}) == []
