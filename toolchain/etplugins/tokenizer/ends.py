"""Whether a program's constants say the same about the beginning and the end of a text as the files of its tokenizer.

ExecuTorch's runner reads `get_eos_ids` and `get_bos_id` from the program, and applications take the tokenizer's files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from etbuild.errors import EtbuildError, Problem, printable
from etplugins.tokenizer import limited

_REPLY = "ready and done"  # no template has these words
_CHAT = [{"role": "user", "content": "begin"}, {"role": "assistant", "content": _REPLY}]
_SETTINGS, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


def notes(files: Mapping[str, bytes], constants: Mapping[str, object]) -> list[Problem]:
    """What an application with these files and this program would do wrong.

    Args:
        files: The content of the tokenizer's files, by their names without directories.
        constants: The constant methods of the program.
    """
    tokenizer, settings = (_read(files, name) for name in ("tokenizer.json", _SETTINGS))
    ends = constants.get("get_eos_ids")
    if not isinstance(ends, list):
        return []
    ids = _ids(tokenizer)
    found = [*_of_ends(settings, ids, ends), *_of_beginning(settings, ids, constants)]
    template = _template(files, settings)
    return [*found, *_of_replies(template, settings, ids, ends)] if template else found


def _of_ends(settings: dict[str, Any], ids: dict[str, int], ends: list[Any]) -> Iterator[Problem]:
    name = _name(settings.get("eos_token"))
    if name in ids and ids[name] not in ends:
        message = f"the tokenizer ends a text with {_shown(name, ids)}, which is not among `get_eos_ids`, {ends}"
        hint = "add it to `eos_token_id` of the settings for generating text, or write `get_eos_ids`"
        yield Problem(message, ("constant_methods",), hint)


def _of_beginning(settings: dict[str, Any], ids: dict[str, int], constants: Mapping[str, object]) -> Iterator[Problem]:
    """A decoder of an encoder begins with another token, which the runner knows."""
    name, begins = _name(settings.get("bos_token")), constants.get("get_bos_id")
    if "decoder_start_token_id" not in constants and begins is not None and ids.get(name, begins) != begins:
        message = f"the tokenizer begins a text with {_shown(name, ids)}, and `get_bos_id` of the program is {begins}"
        yield Problem(message, ("constant_methods",), "write `get_bos_id` in `constant_methods`")


def _of_replies(template: str, settings: dict[str, Any], ids: dict[str, int], ends: list[Any]) -> Iterator[Problem]:
    """The token after a reply in the chat template, if it does not end a text."""
    names = {key: _name(settings.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    try:
        text: str = limited.result("the chat template fails", lambda: _rendered(template, names))
    except EtbuildError:
        return  # `generate --chat` says why it fails
    rest = text.partition(_REPLY)[2].lstrip()
    name = max((name for name in ids if name.startswith(("<", "[")) and rest.startswith(name)), key=len, default="")
    if name and ids[name] not in ends:
        message = f"a reply in a chat ends with {_shown(name, ids)}, which is not among `get_eos_ids`, {ends}"
        hint = "the runner would not stop there: add it to `eos_token_id` of the settings for generating text"
        yield Problem(message, ("constant_methods",), hint)


def _rendered(template: str, names: Mapping[str, str]) -> str:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: ""}
    return made.from_string(template).render(messages=_CHAT, add_generation_prompt=False, **names)


def _template(files: Mapping[str, bytes], settings: dict[str, Any]) -> str:
    """The chat template; empty without one."""
    if _TEMPLATE in files:
        return files[_TEMPLATE].decode("utf-8", "replace")
    found = settings.get("chat_template")
    return found if isinstance(found, str) else ""


def _read(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The content of a JSON file; empty if it is missing or something else."""
    try:
        content = json.loads(files.get(name, b"{}"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _ids(tokenizer: dict[str, Any]) -> dict[str, int]:
    """The ids of the words and added tokens of a `tokenizer.json`."""
    model = tokenizer.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    found = dict(words) if isinstance(words, dict) else {}
    if isinstance(words, list):
        found = {entry[0]: index for index, entry in enumerate(words) if isinstance(entry, list) and entry}
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict):
            found[entry.get("content")] = entry.get("id")
    return {name: token for name, token in found.items() if isinstance(name, str) and type(token) is int}


def _name(token: object) -> str:
    """The text of a token in `tokenizer_config.json`, where it may be an object; empty without one."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def _shown(name: str, ids: Mapping[str, int]) -> str:
    return f"`{printable(name[:40])}` ({ids[name]})"
