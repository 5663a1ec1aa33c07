"""Makes the page of the command line from the parsers of the driver.

It uses none of argparse's own texts, since they differ between versions of Python and depend on the width of the
terminal.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from etbuild.cli import main
from tools.reference.markdown import fence, link, table
from tools.reference.markdown import page as markdown_page

OWN_EXIT_CODES = {
    "build": {3: "a check of the manifest failed"},
    "generate": {3: "a check of the manifest failed"},
    "targets": {1: "with `--check`: a file would change, or a target disagrees with its manifest"},
    "test": {3: "a test failed"},
    "bench": {3: "a method is slower than `--max-slowdown` allows"},
    "doctor": {1: "something that builds need is missing or broken"},
    "diff": {1: "with `--exit-code`: the two differ"},
    "lock": {3: "the program is not the one of the lockfile"},
    "cache": {1: "`cache verify` has found damage"},
    "push": {1: "the registry failed, or the package is damaged"},
    "pull": {
        1: "the registry failed, or has sent something else than what was pushed",
        3: "the command of `--signed` does not accept the signature",
    },
    "verify": {
        1: "a file is damaged",
        3: "the policy does not allow a program, or the command of `--signed` does not accept the signature",
    },
    "apply": {1: "the delta is damaged"},
    "kernels": {3: "a kernel that is selected is not there"},
    "selected-ops": {3: "a program needs a kernel that is not there"},
    "history": {1: "the registry failed, or a package is damaged"},
}
"""What an exit code means for a verb, if it means more than for all of them."""

_LINE = 100  # the maximum length of a line of a usage, in characters


def page() -> str:
    """Returns the page."""
    tested = "text not run: the parsers print these lines"
    return markdown_page("Command line", "the parsers of toolchain/etbuild/cli", _blocks(main.command_parser()), tested)


def _blocks(parser: argparse.ArgumentParser) -> Iterator[str]:
    verbs = _subparsers(parser)
    yield parser.description or ""
    yield fence("text", f"{parser.prog} [--version] [--help] VERB ...")
    yield (
        "Results go to standard output. Errors and progress go to standard error. Options cannot be abbreviated. "
        "`etbuild VERB @FILE` reads the arguments from a file, one on each line."
    )
    for_users = {action.dest for action in _choices(parser)}
    rows = [(link(f"etbuild {verb}"), _description(verbs[verb])) for verb in verbs]
    titles = ("verb", "description")
    yield table(titles, [row for row, verb in zip(rows, verbs, strict=True) if verb in for_users])
    yield "Build rules call these verbs; they may change in any release:"
    yield table(titles, [row for row, verb in zip(rows, verbs, strict=True) if verb not in for_users])
    yield "## Exit codes"
    yield table(("code", "meaning"), [(str(code), meaning) for code, meaning in main.EXIT_CODES.items()])
    yield "Some codes say more for some verbs. `--json` of a verb prints its result as JSON:"
    codes = {verb: OWN_EXIT_CODES.get(verb, {}) for verb in verbs if verb in for_users}
    said = {verb: "; ".join(f"{code}: {meaning}" for code, meaning in of.items()) for verb, of in codes.items()}
    facts = [(link(f"etbuild {verb}"), "yes" if _has_json(verbs[verb]) else "", said[verb]) for verb in said]
    yield table(("verb", "`--json`", "exit codes"), facts)
    for verb in verbs:
        yield from _verb(verbs[verb], "##")


def _has_json(parser: argparse.ArgumentParser) -> bool:
    """Whether a verb, or each action of it, has `--json`."""
    below = _subparsers(parser)
    if below:
        return all(map(_has_json, below.values()))
    return any("--json" in action.option_strings for action in parser._actions)


def _verb(parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    below = _subparsers(parser)
    yield f"{level} {parser.prog}"
    yield parser.description or ""
    if below:
        yield table(("action", "description"), [(link(one.prog), _description(one)) for one in below.values()])
    else:
        yield fence("text", _usage(parser))
        for title, actions in _groups(parser):
            yield f"{title}:" if title else ""
            yield table(("argument", "description"), [(f"`{_name(action)}`", _help(action)) for action in actions])
    for one in below.values():
        yield from _verb(one, f"{level}#")


def _choices(parser: argparse.ArgumentParser) -> Iterable[argparse.Action]:
    """Returns the verbs that `--help` lists."""
    return [choice for action in _subparser_actions(parser) for choice in action._choices_actions]


def _subparser_actions(parser: argparse.ArgumentParser) -> list[argparse._SubParsersAction[argparse.ArgumentParser]]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {name: found for action in _subparser_actions(parser) for name, found in action.choices.items()}


def _groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Returns the arguments by group. The groups that argparse makes itself are one group without a title."""
    own: list[argparse.Action] = []
    titled: list[tuple[str, list[argparse.Action]]] = []
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if group in (parser._positionals, parser._optionals):
            own += actions
        else:
            titled.append((f"{(group.title or '')[:1].upper()}{(group.title or '')[1:]}", actions))
    return iter([(title, actions) for title, actions in [("", own), *titled] if actions])


def _usage(parser: argparse.ArgumentParser) -> str:
    """Returns the usage, with line breaks between arguments."""
    exclusive = [group._group_actions for group in parser._mutually_exclusive_groups]
    words, done = [], []
    actions = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    for action in sorted(actions, key=lambda action: not action.option_strings):
        if action in done:
            continue
        together = next((group for group in exclusive if action in group), [action])
        done += together
        text = " | ".join(_name(one) for one in together)
        words.append(f"[{text}]" if action.option_strings and not action.required else text)
    lines = [parser.prog]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > _LINE:
            lines.append(" " * len(parser.prog))
        lines[-1] += f" {word}"
    return "\n".join(lines)


def _name(action: argparse.Action) -> str:
    """Returns an argument as a user writes it, such as `--root DIR` or `MANIFEST [MANIFEST ...]`."""
    value = str(action.metavar or action.dest)
    if action.option_strings:
        return action.option_strings[-1] + ("" if action.nargs == 0 else f" {value}")
    return {"+": f"{value} [{value} ...]", "?": f"[{value}]"}.get(str(action.nargs), value)


def _help(action: argparse.Action) -> str:
    text = action.help or ""
    said = f"{text[:1].upper()}{text[1:]}."
    return f"Required. {said}" if action.option_strings and action.required else said


def _description(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").partition(". ")[0].removesuffix(".") + "."
