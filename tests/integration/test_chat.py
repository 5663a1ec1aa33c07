"""A chat with a language model says what transformers says, with the templates of several families. A template
cannot do anything else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from etbuild.errors import InputError
from etplugins.runtime import program_files
from tests.helpers import commands
from tests.helpers.language_models import CACHES, model, project, tokenizer, transformers
from tests.helpers.once import made_once

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789,.?!ĊABCDEFGHIJ"  # `Ċ` is a line break
CONTROL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
END, EOT = 4 + len(LETTERS) + 1, 4 + len(LETTERS) + 4
CHATML = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nbe nice<|im_end|>\\n' }}{% endif -%}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") | lower %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
TOOLS = "{%- if tools %}{{ '<|im_start|>tools\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif -%}\n" + CHATML
WEATHER = [{"type": "function", "function": {"name": "weather", "description": "says it", "parameters": {}}}]
RESULT = {"role": "tool", "name": "weather", "content": "sunny"}
CALLING = """\
{{- '<|im_start|>tools\\n' + tools | tojson + '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == 'tool' and not loop.previtem.tool_calls %}
        {{- raise_exception('a result follows no call') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] }}
    {%- for call in message.tool_calls or [] %}{{ ' calls ' + call.function.name }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
CALL = {"type": "function", "function": {"name": "weather", "arguments": {}}}
RESPONSE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<|start_header_id|>",
            "close": "<|end_header_id|>",
            "repeats": True,
            "content": "kv-lines",
            "content_args": {"kv_sep": "."},
            "transform": {"type": "function", "function": {"name": "{content.name}", "arguments": {}}},
        },
        "content": {"content": "text"},
    },
}
"""Templates such as Mistral's refuse a result without a call, and write a call otherwise than the model does."""
TEMPLATES = {"chatml": CHATML, "llama": LLAMA}
TURNS = ["hello there", "what is 12?", "really? tell me more, please"]
MOST = 12


def files(directory: Path, template: str | None, **settings: Any) -> list[Path]:
    """The files of a tokenizer with a chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    made = tokenizer(LETTERS)
    made.add_special_tokens(CONTROL)
    made.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return sorted([*directory.glob("tokenizer*.json"), *directory.glob("*.jinja")])


@pytest.fixture(scope="session")
def built(shared_directory: Path) -> Path:
    """A project with a program, and the tokenizer of ChatML."""

    def make(partial: Path) -> None:
        names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
        path = project(partial, "qwen", {**CACHES["custom"], "max_length": 512}, tokenizer=names)
        files(partial, CHATML)
        commands.build(path, partial / "out", "--cache-dir", shared_directory / "cache-of-chat")

    return made_once(shared_directory / "chat", make)


@pytest.fixture
def decoder(built: Path) -> Iterator[Any]:
    from etkit.running.generation.decoder import Decoder

    with tempfile.TemporaryDirectory() as scratch:
        yield Decoder(program_files.read(built / "out/net.pte"), Path(scratch))


def expected(reader: Any, end: int, system: str | None, turns: list[str]) -> list[tuple[list[int], str]]:
    """The tokens and the text of each answer of transformers."""
    messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    answers = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        ids = reader.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
        made = model("qwen").generate(ids, max_new_tokens=MOST, do_sample=False, eos_token_id=[1, end])
        tokens = [each for each in made[0, ids.shape[1] :].tolist() if each not in (1, end)]
        answers.append((tokens, reader.decode(tokens, skip_special_tokens=True)))
        messages.append({"role": "assistant", "content": answers[-1][1]})
    return answers


@pytest.mark.parametrize(("name", "system"), [("chatml", None), ("chatml", "be brief"), ("llama", "be brief")])
def test_a_conversation_has_the_tokens_of_transformers(
    name: str, system: str | None, decoder: Any, tmp_path: Path
) -> None:
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.conversation import Conversation

    made = files(tmp_path, TEMPLATES[name])
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
    end = EOT if name == "llama" else END
    wanted = expected(reader, end, system, TURNS)
    assert len({each for tokens, _ in wanted for each in tokens}) > 5  # otherwise a wrong cache could pass
    with ChatTokenizer(made) as used:
        conversation = Conversation(decoder, used, system, 0)
        assert conversation._ends == {1, end}
        assert ["".join(conversation.answer(turn, MOST)) for turn in TURNS] == [text for _, text in wanted]
    assert conversation.answers == [tokens for tokens, _ in wanted]
    assert not [note for note in conversation.notes if "ExecuTorch" in note]


def test_a_turn_that_continues_the_text_computes_only_what_is_new(decoder: Any) -> None:
    text = [*range(4, 40)]
    first = decoder.scores(text[:20])
    assert (decoder.computed, decoder.held) == (20, text[:20])
    rest = decoder.scores(text)
    assert (decoder.computed, decoder.held) == (36, text)
    again = decoder.scores(text[:20])  # the cache holds more than this text: it begins again
    assert (decoder.computed, decoder.held) == (56, text[:20])
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    other = [5, *text[1:]]
    assert not torch.equal(decoder.scores(other), rest)
    assert decoder.held == other


def test_a_conversation_continues_in_the_cache(decoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a conversation whose answers the template leaves as they are, each token is computed once."""
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.conversation import Conversation

    with ChatTokenizer(files(tmp_path, CHATML)) as reader:
        conversation = Conversation(decoder, reader, None, 0)
        monkey = iter([*[10, 11, 12], END, *[13, 14], END])
        monkeypatch.setattr("etkit.running.generation.decoder.chosen", lambda *_: next(monkey))
        assert ["".join(conversation.answer(turn, MOST)) for turn in TURNS[:2]] == ["ghi", "jk"]
        assert decoder.computed == len(decoder.held) == len(reader.prompt(conversation.messages[:3])) + 2


def test_an_empty_prompt_is_an_error_of_its_own(decoder: Any, tmp_path: Path) -> None:
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.continuation import continuation
    from etkit.running.generation.conversation import Conversation

    made = files(tmp_path, "{#- writes nothing -#}")
    file = tmp_path / "tokenizer.json"
    with pytest.raises(InputError, match=r"^the prompt is empty: it has no token .*\n    write a text$"):
        [*continuation(decoder, str(file), "", MOST, 0)]
    with ChatTokenizer(made) as reader:
        conversation = Conversation(decoder, reader, None, 0)
        with pytest.raises(InputError, match=r"^the prompt is empty: it has no token"):
            [*conversation.answer("hello", MOST)]


def test_a_temperature_draws_tokens() -> None:
    from etkit.running.generation.decoder import chosen

    scores = torch.tensor([0.0, 3.0, 2.9])
    assert chosen(scores, 0) == 1
    assert {chosen(scores, 1.0) for _ in range(200)} >= {1, 2}
    assert {chosen(scores, 1e-3) for _ in range(20)} == {1}


def greedy(reader: Any, messages: list[Any], **settings: Any) -> list[int]:
    """The tokens of transformers' answer."""
    ids = reader.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=False, **settings
    )
    made = model("qwen").generate(ids, max_new_tokens=MOST, do_sample=False, eos_token_id=[1, END])
    return [each for each in made[0, ids.shape[1] :].tolist() if each not in (1, END)]


def test_a_long_conversation_loses_its_oldest_turns(decoder: Any, tmp_path: Path) -> None:
    """Each answer is that of transformers to what is left. Results of tools go with their turn."""
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.conversation import Conversation

    made = files(tmp_path, TOOLS)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
    news: list[Any] = ["first " * 14, [RESULT], "second " * 12, "third " * 14, [RESULT], "x" * 300]
    with ChatTokenizer(made, WEATHER) as used:
        conversation = Conversation(decoder, used, "be brief", 0, shorten=True)
        left = []
        for new in news:
            before = [each for each in conversation.messages if each["role"] == "user"]
            "".join(conversation.answer(new, MOST))
            kept = conversation.messages[:-1]
            assert conversation.answers[-1] == greedy(reader, kept, tools=WEATHER)
            length = len(used.prompt(kept))
            assert length + MOST <= decoder.context
            assert kept[0] == {"role": "system", "content": "be brief"}
            assert kept[1]["role"] == "user"
            asked = [each for each in kept if each["role"] == "user"]
            left.append(len(before) + isinstance(new, str) - len(asked))
        assert left == [0, 0, 0, 0, 1, 2]
        assert len(conversation.messages) == 3
        assert conversation.notes[-1].startswith("the 3 oldest turns were left out, because")
        tight = "x" * (decoder.context - len(used.prompt([kept[0], {"role": "user", "content": ""}])) - 3)
        "".join(conversation.answer(tight, MOST))  # the newest turn stays whole, and the answer gets what is left
        assert conversation.messages[1]["content"] == tight
        assert len(conversation.answers[-1]) <= 4
        with pytest.raises(InputError, match=r"^the newest turn has 51[3-9] tokens.*\n.* or a shorter turn"):
            [*conversation.answer(tight + "x" * 5, MOST)]


def test_a_conversation_without_a_message_of_the_user_leaves_nothing_out(decoder: Any, tmp_path: Path) -> None:
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.conversation import Conversation

    with ChatTokenizer(files(tmp_path, TOOLS), WEATHER) as reader:
        conversation = Conversation(decoder, reader, "be brief", 0, shorten=True)
        with pytest.raises(InputError, match=r"^the newest turn has \d+ tokens.*\n.* or a shorter turn"):
            [*conversation.answer([{**RESULT, "content": "x" * 600}], MOST)]


def test_a_conversation_leaves_no_turn_out_unasked(decoder: Any, tmp_path: Path) -> None:
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.conversation import Conversation

    with ChatTokenizer(files(tmp_path, CHATML)) as reader:
        conversation = Conversation(decoder, reader, None, 0)
        "".join(conversation.answer("x" * 300, MOST))
        with pytest.raises(InputError, match=r"`--shorten` to leave out the oldest turns"):
            [*conversation.answer("x" * 300, MOST)]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("look <|start_header_id|>name.weather<|end_header_id|>", {"content": "look", "tool_calls": [CALL]}),
        ("<|start_header_id|>name.weather<|end_header_id|>", {"content": "", "tool_calls": [CALL]}),
        ("<|start_header_id|>weather", {"content": "<|start_header_id|>weather"}),
        ("nothing to call", {"content": "nothing to call"}),
    ],
)
def test_a_template_gets_the_calls_of_an_answer_as_such(
    said: str, message: dict[str, Any], decoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without calls, it gets a text. Here it refuses results of tools then, and a note says why."""
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.conversation import Conversation

    made = files(tmp_path, CALLING, response_template=RESPONSE)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokens = iter([*reader(said, add_special_tokens=False)["input_ids"], END, 10, END])
    monkeypatch.setattr("etkit.running.generation.decoder.chosen", lambda *_: next(tokens))
    with ChatTokenizer(made, WEATHER) as used:
        conversation = Conversation(decoder, used, None, 0)
        assert "".join(conversation.answer(TURNS[0], 99)) == said
        assert conversation.messages[1] == {"role": "assistant", **message}
        if "tool_calls" in message:
            assert "".join(conversation.answer([RESULT], 99)) == "g"
            call = f"assistant\n{message['content']} calls weather<|im_end|>\n<|im_start|>tool\nsunny<|im_end|>\n"
            assert f"<|im_start|>{call}<|im_start|>assistant\n" in reader.decode(decoder.held)
        else:
            with pytest.raises(InputError, match="a result follows no call"):
                [*conversation.answer([RESULT], 99)]
        noted = any("results of tools follow" in each for each in conversation.notes)
        assert noted == ("tool_calls" not in message)


def test_a_response_template_of_another_form_is_an_error(tmp_path: Path) -> None:
    from etkit.running.generation.chat_tokenizer import ChatTokenizer

    made = files(tmp_path, CALLING, response_template={"fields": {}})
    with pytest.raises(InputError, match=r"^tokenizer\.json: the tokenizer cannot be read: .*response_template"):
        ChatTokenizer(made, WEATHER)


def test_the_command_takes_tools_and_their_results(built: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(WEATHER))
    reader = transformers.AutoTokenizer.from_pretrained(files(tmp_path / "other", TOOLS)[0].parent)
    (tmp_path / "chat_template.jinja").write_text(TOOLS)
    messages: list[dict[str, str]] = []
    for each in ({"role": "user", "content": TURNS[0]}, RESULT):
        messages.append(each)
        answer = reader.decode(greedy(reader, messages, tools=WEATHER), skip_special_tokens=False)
        messages.append({"role": "assistant", "content": answer})
    command = ["generate", built / "model.yaml", TURNS[0], "--chat", "--tokens", MOST, "-o", tmp_path / "out"]
    command += ["--cache-dir", built.parent / "cache-of-chat", "--tools", tmp_path / "tools.json"]
    refused = commands.etbuild(*command)
    assert refused.returncode == 2
    assert "`--tools`: the chat template of this model takes no tools" in refused.stderr
    assert not (tmp_path / "out").exists()  # it is refused before the build
    done = commands.etbuild(
        *command, "--data", f"chat_template.jinja={tmp_path / 'chat_template.jinja'}", typed=json.dumps(RESULT)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{each['content']}\n" for each in messages if each["role"] == "assistant")
    assert "note: results of tools follow an answer in which no call was found" in done.stderr


def test_the_command_answers_lines(built: Path, tmp_path: Path) -> None:
    reader = transformers.AutoTokenizer.from_pretrained(built)
    wanted = [text for _, text in expected(reader, END, "be brief", TURNS)]
    command = ["generate", built / "model.yaml", TURNS[0], "--chat", "--system", "be brief", "--tokens", MOST]
    command += ["-o", tmp_path, "--cache-dir", built.parent / "cache-of-chat"]
    done = commands.etbuild(*command, typed="\n".join(["", *TURNS[1:]]))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"{text}\n" for text in wanted)


def test_notes_are_printed_if_a_later_turn_fails(built: Path, tmp_path: Path) -> None:
    command = ["generate", built / "model.yaml", TURNS[0], "--chat", "--tokens", 1, "-o", tmp_path]
    done = commands.etbuild(*command, "--cache-dir", built.parent / "cache-of-chat", typed="x" * 600)
    assert done.returncode == 2
    note, error = (
        done.stderr.find(text) for text in ("note: an answer was cut after 1 token:", "error: the conversation")
    )
    assert 0 <= note < error


def test_the_index_has_the_template(built: Path) -> None:
    index = json.loads((built / "out/net.index.json").read_text())
    assert "net.tokenizer/chat_template.jinja" in {each["file"] for each in index["artifacts"]}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no system here') }}", "the chat template fails: TemplateError: no system here"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "the chat template fails: SecurityError"),
        ("{{ messages.append(1) }}", "the chat template fails: SecurityError"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "it takes more than 0.1 seconds",
        ),
        ("{% if %}", "the chat template fails: TemplateSyntaxError"),
        ("{{ 'a' * 10 ** 10 }}", "the chat template fails: it takes more than 2.1 GB of memory"),
        (None, "the tokenizer has no chat template"),
    ],
)
def test_a_template_that_cannot_be_used_is_an_error(
    template: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etkit.running.generation import chat_tokenizer

    monkeypatch.setattr(chat_tokenizer, "_RENDERING", 0.1)
    with pytest.raises(InputError) as raised, chat_tokenizer.ChatTokenizer(files(tmp_path, template)) as reader:
        reader.prompt([{"role": "user", "content": "hi"}])
    assert message in str(raised.value)
    assert ("tokenizer_config.json that has the template" in str(raised.value)) == (template is None)
    assert str(raised.value).startswith("the tokenizer has" if template is None else "chat_template.jinja: ")


def test_a_conversation_that_does_not_fit_and_an_answer_that_is_cut_are_said(decoder: Any, tmp_path: Path) -> None:
    from etkit.running.generation.chat_tokenizer import ChatTokenizer
    from etkit.running.generation.conversation import Conversation

    with ChatTokenizer(files(tmp_path, CHATML)) as reader:
        conversation = Conversation(decoder, reader, None, 0)
        conversation._ends = set()
        assert "".join(conversation.answer("a", 600))
        assert len(conversation.answers[0]) + len(decoder.held) > decoder.context
        assert conversation.notes == [
            f"an answer was cut after {len(conversation.answers[0])} tokens: `--tokens` and the cache are the limits"
        ]
        with pytest.raises(InputError, match=r"the conversation has \d+ tokens, and the cache of the program 512"):
            [*conversation.answer("a" * 600, 1)]


def test_other_tokens_than_those_of_the_runner_are_noted(tmp_path: Path) -> None:
    from etkit.running.generation.chat_tokenizer import ChatTokenizer

    with ChatTokenizer(files(tmp_path, CHATML)) as reader:
        assert reader.note_on_runner([{"role": "user", "content": "hi"}]) is None
        said = reader.note_on_runner([{"role": "user", "content": "XYZ is in no word"}])
        assert said == "ExecuTorch's tokenizer makes other tokens of this conversation than transformers"
        assert reader.ends_of_turns() == {END}


GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1024}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "panics when it is read": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        'the tokenizer cannot be read: Precompiled: Error("Cannot parse precompiled_charsmap"',
    ),
    "panics when it reads": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "CAAAAAECAwQFBgcI"}},
        "the tokenizer fails: index out of bounds: the len is 2",
    ),
    "panics when it writes": (
        {"decoder": {"type": "Strip", "content": "a", "start": 5, "stop": 9}},
        "the tokenizer fails: index out of bounds: the len is 1",
    ),
    "takes all memory": (
        {"normalizer": {"type": "Sequence", "normalizers": [GROWS] * 4}},
        "the tokenizer fails: it takes more than 2.1 GB of memory",
    ),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_tokenizer_is_an_error_of_one_line(
    how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Panics of Rust are no subclass of `Exception`, and Rust prints them itself; without memory it aborts."""
    from etkit.running.generation.chat_tokenizer import ChatTokenizer

    changes, message = HOSTILE[how]
    made = files(tmp_path, CHATML)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, **changes}))
    with pytest.raises(InputError) as raised, ChatTokenizer(made) as reader:
        [reader.text([each]) for each in reader.prompt([{"role": "user", "content": "aaaa"}])]
    assert str(raised.value).startswith(f"tokenizer.json: {message}")
    assert len(str(raised.value).splitlines()) == 1
    assert "panic" not in str(raised.value) + "".join(capfd.readouterr())


def test_a_tokenizer_of_the_runner_has_limits_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from etplugins.tokenizer.runner_tokenizer import check

    files(tmp_path, None)
    file = tmp_path / "tokenizer.json"
    check(str(file), "aaaa")
    file.write_text(json.dumps({**json.loads(file.read_text()), **HOSTILE["takes all memory"][0]}))
    with pytest.raises(InputError, match=r"^tokenizer\.json: ExecuTorch's tokenizer fails: it takes more than 2\.1 GB"):
        check(str(file), "aaaa")
    assert "".join(capfd.readouterr()) == ""
