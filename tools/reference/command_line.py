"""Makes the pages of the command line from the parsers of the driver.

It uses none of argparse's own texts, since they differ between versions of Python and depend on the width of the
terminal.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from etbuild.cli import main
from tools.reference.markdown import fence, link, table
from tools.reference.markdown import page as markdown_page

OWN_EXIT_CODES = {
    "build": {3: "a check of the manifest failed"},
    "generate": {3: "a check of the manifest failed"},
    "plan": {3: "with `--memory`: the build does not fit into the memory"},
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
        3: "a lockfile beside a build is that of another program, the policy does not allow a program, or the command "
        "of `--signed` does not accept the signature",
    },
    "apply": {1: "the delta is damaged"},
    "kernels": {3: "a kernel that is selected is not there"},
    "selected-ops": {3: "a program needs a kernel that is not there"},
    "history": {1: "the registry failed, or a package is damaged"},
}
"""The meaning of exit codes that is special to a verb."""

_OF_RULES = "for build rules"
_OF_SEVERAL = "Options of several verbs"
_LINE = 100  # the maximum length of a line of a usage, in characters


_SHARED = 3  # an option that at least so many verbs have is described once


def pages() -> dict[str, str]:
    """Returns a page for each group of verbs in the help, and their index."""
    parser = main.command_parser()
    verbs = _subparsers(parser)
    groups = {**{title: list(several) for title, several in main.sections().items()}, _OF_RULES: []}
    groups[_OF_RULES] = [verb for verb in verbs if not any(verb in several for several in groups.values())]
    shared = _shared(verbs.values())
    written = {"command-line.md": _page("Command line", _index(parser, groups, shared))}
    for title, several in groups.items():
        content = (block for verb in several for block in _verb(verbs[verb], "##", shared))
        written[_file(title)] = _page(f"Verbs: {title}", content)
    return written


def _page(title: str, blocks: Iterable[str]) -> str:
    tested = "text run by: tests/unit/test_reference.py"
    return markdown_page(title, "the parsers of toolchain/etbuild/cli", blocks, tested)


def _file(group: str) -> str:
    return f"command-line/{group.replace(' ', '-')}.md"


def _index(
    parser: argparse.ArgumentParser, groups: dict[str, list[str]], shared: AbstractSet[tuple[str, str]]
) -> Iterator[str]:
    verbs = _subparsers(parser)
    yield parser.description or ""
    yield fence("text", f"{parser.prog} [--version] [--help] VERB ...")
    yield (
        "Results go to standard output. Errors and progress go to standard error. Options cannot be abbreviated. "
        "`etbuild VERB @FILE` reads the arguments from a file, one on each line."
    )
    links = {verb: link(f"etbuild {verb}", None, _file(title)) for title in groups for verb in groups[title]}
    for title, several in groups.items():
        yield f"**{title[:1].upper()}{title[1:]}**" + (
            "; these verbs may change in any release" if title == _OF_RULES else ""
        )
        yield table(("verb", "description"), [(links[verb], _description(verbs[verb])) for verb in several])
    yield f"## {_OF_SEVERAL}"
    yield table(("option", "description"), sorted(shared))
    yield "## Exit codes"
    yield table(("code", "meaning"), [(str(code), meaning) for code, meaning in main.EXIT_CODES.items()])
    yield "Some codes say more for some verbs. `--json` of a verb prints its result as JSON:"
    codes = {verb: OWN_EXIT_CODES.get(verb, {}) for verb in verbs if verb not in groups[_OF_RULES]}
    said = {verb: "; ".join(f"{code}: {meaning}" for code, meaning in of.items()) for verb, of in codes.items()}
    facts = [(links[verb], "yes" if _has_json(verbs[verb]) else "", said[verb]) for verb in said]
    yield table(("verb", "`--json`", "exit codes"), facts)


def _shared(parsers: Iterable[argparse.ArgumentParser]) -> set[tuple[str, str]]:
    """Returns the options that several verbs have with the same meaning, as rows of a table."""
    waiting = list(parsers)
    rows: list[tuple[str, str]] = []
    while waiting:
        parser = waiting.pop()
        waiting += _subparsers(parser).values()
        rows += [_row(action) for _, actions in _groups(parser) for action in actions if action.option_strings]
    return {row for row, times in Counter(rows).items() if times >= _SHARED}


def _has_json(parser: argparse.ArgumentParser) -> bool:
    """Whether a verb, or each action of it, has `--json`."""
    below = _subparsers(parser)
    if below:
        return all(map(_has_json, below.values()))
    return any("--json" in action.option_strings for action in parser._actions)


def _verb(parser: argparse.ArgumentParser, level: str, shared: AbstractSet[tuple[str, str]]) -> Iterator[str]:
    below = _subparsers(parser)
    yield f"{level} {parser.prog}"
    yield parser.description or ""
    if below:
        yield table(("action", "description"), [(link(one.prog), _description(one)) for one in below.values()])
    else:
        yield fence("text", _usage(parser))
        for title, actions in _groups(parser):
            own = [row for row in map(_row, actions) if row not in shared]
            yield f"{title}:" if title and own else ""
            yield table(("argument", "description"), own) if own else ""
        elsewhere = [name for _, actions in _groups(parser) for name, _ in sorted(shared & set(map(_row, actions)))]
        yield f"{link(_OF_SEVERAL, None, 'command-line.md')}: {', '.join(elsewhere)}." if elsewhere else ""
    for one in below.values():
        yield from _verb(one, f"{level}#", shared)


def _row(action: argparse.Action) -> tuple[str, str]:
    return f"`{_name(action)}`", _help(action)


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
