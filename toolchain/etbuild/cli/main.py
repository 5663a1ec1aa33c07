"""The command line. Results go to standard output, diagnostics to standard error."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType

from etbuild import plugins
from etbuild.cli import SECTIONS, VERBS
from etbuild.errors import (
    INTERRUPTED,
    BuildError,
    Elsewhere,
    EtbuildError,
    InputError,
    check_current_directory,
    did_you_mean,
)
from etbuild.processes.ending import Interrupts

EXIT_CODES = {
    0: "success",
    1: "the build or the transfer failed",
    2: "the input or the usage is wrong",
    3: "a check of the manifest, a lockfile or a policy failed",
    INTERRUPTED: "a signal ended the command",
}


def _tell_interrupt() -> None:
    with suppress(OSError):  # standard error is full or closed; the exit code still tells of the error
        print("etbuild: interrupted", file=sys.stderr)


def main(
    arguments: Sequence[str] | None = None,
    restart: Callable[[float | None, bool], None] = lambda limit, warm: None,
    tell_interrupt: Callable[[], None] = _tell_interrupt,
    interrupts: Interrupts | None = None,
) -> int:
    """Runs one command.

    Args:
        arguments: The arguments of the command. Default: those of the process.
        restart: Verbs that build call it before they import torch, with the time limit of the build in seconds, and
            whether a process that an earlier build left behind may run it. It runs the command in a process with a
            fixed environment, unless the current process is already such a process.
        tell_interrupt: Called after a signal ended the command. It prints a message.
        interrupts: A context that handles signals while the command runs. None: the caller handles them.

    Returns:
        The exit code.

    Raises:
        Exception: A bug of the driver. Errors that a user can fix are printed, and become an exit code.
    """
    handled = interrupts is not None
    interrupts = interrupts or Interrupts()
    options = argparse.Namespace(tell=_print_error, rule={})
    try:
        _mend_streams()
        if handled:
            interrupts.install()
        words = _expand(list(sys.argv[1:] if arguments is None else arguments))
        _parse(_without_rule(words, options), options)
        options.restart = partial(restart, getattr(options, "timeout", None), getattr(options, "warm", False))
        code = _run(options)
        sys.stdout.flush()
        interrupts.over = True
        return code
    except SystemExit:  # from argparse
        interrupts.over = True
        try:
            sys.stdout.flush()
        except OSError as error:
            return _tell(error, options)
        raise
    except Elsewhere as done:
        interrupts.over = True
        return done.code
    except BaseException as error:  # noqa: BLE001 - `_tell` raises a bug of the driver again
        interrupts.over = True
        # Libraries turn an interrupt into other errors: PyTorch does, for example, while it is imported.
        if interrupts.received or isinstance(error, KeyboardInterrupt):
            tell_interrupt()
            return INTERRUPTED
        return _tell(error, options)


def _tell(error: BaseException, options: argparse.Namespace) -> int:
    """Prints the error, and returns the exit code. Raises the error again if it is a bug of the driver."""
    known = error
    if not isinstance(error, EtbuildError):
        from etbuild.foreign_errors import foreign_error, system_error, written_file

        unnamed = isinstance(error, OSError) and error.filename is None and written_file(error) is None
        if isinstance(error, OSError) and unnamed and error.errno in (errno.EPIPE, errno.ENOSPC, errno.EIO):
            return _lose_output(error)
        known = _removed_directory(error) or system_error(error) or foreign_error(error) or error
    if not isinstance(known, EtbuildError):
        raise error
    options.tell(known.in_rule(**options.rule) if "target" in options.rule else known)
    return known.exit_code


def _print_error(error: EtbuildError) -> None:
    from etbuild.cli.terminal import print_error

    with suppress(OSError):  # standard error is full or closed; the exit code still tells of the error
        print_error(error)


def _removed_directory(error: BaseException) -> InputError | None:
    """Returns an error if the current directory was removed, so that relative paths fail; otherwise None."""
    try:
        if isinstance(error, OSError) and error.errno == errno.ENOENT and error.filename is None:
            check_current_directory()
    except InputError as removed:
        return removed
    return None


def _lose_output(error: OSError) -> int:
    if error.errno != errno.EPIPE:  # for EPIPE there is no message: the reader closed the pipe on purpose
        print(f"etbuild: cannot write to standard output: {error.strerror}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _run(options: argparse.Namespace) -> int:
    try:
        return int(options.run(options))
    except SystemExit as end:  # a library, not the driver, called the model's code
        message = f"something called `sys.exit({end.code!r})` while the command ran"
        raise BuildError.of(message, "does the model call it?") from end
    except MemoryError as error:
        from etbuild.processes.build_status import out_of_memory

        raise BuildError([out_of_memory("the build")]) from error


def _mend_streams() -> None:
    """Replaces closed streams by the null device. Escapes characters that the encoding of a stream lacks."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _expand(arguments: list[str]) -> list[str]:
    """Replaces `@FILE` by the lines of the file, if it is the only argument or the only one after the verb."""
    if len(arguments) not in (1, 2) or not arguments[-1].startswith("@"):
        return arguments
    path = Path(arguments[-1][1:])
    try:
        text = path.read_bytes().decode("utf-8")  # only a line feed ends an argument: others may be part of one
        return [*arguments[:-1], *(text.removesuffix("\n").split("\n") if text else [])]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.of(f"{path}: cannot read the file of arguments: {error}") from None


def _without_rule(words: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Reads what a build rule gives to any verb: what `Problem.in_rule` needs, and plug-ins. Returns the others."""
    left, given = [], []
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--rule-target", "--rule-command") and value:
            options.rule[option.removeprefix("--rule-")] = value
        elif option == "--rule-attribute" and value:
            options.rule.setdefault("options", {}).update([value.split("=", 1)])
        elif option == "--plugin" and value:
            given.append(Path(value))
        elif option == "--plugins" and value:
            given += plugins.handed(Path(value))
        else:
            left.append(word)
    if given:
        plugins.add(given)
    return left


def _parse(words: Sequence[str], options: argparse.Namespace) -> None:
    """Parses a command line. If argparse itself refuses it, the process ends."""
    if not words:
        command_parser().print_help(sys.stderr)
        raise SystemExit(InputError.exit_code)
    verbs = _verbs(words)
    if verbs is None and not words[0].startswith("-"):
        manifest = words[0].endswith((".yaml", ".yml"))
        hint = f"to build a manifest, write `etbuild build {words[0]}`" if manifest else None
        hint = hint or did_you_mean(words[0], _examples() or VERBS)
        raise InputError.of(f"there is no verb `{words[0]}`", hint)
    if verbs is None and words[1:] and _verbs(words[1:]) is None:
        raise InputError.of(
            f"`{words[0]}` is before the verb", "options follow the verb: `etbuild build ... --out out`"
        )
    parser = command_parser(verbs)
    _, left = parser.parse_known_args(words, options)
    if left:
        raise _unknown(left[0], parser, options)


def _unknown(word: str, parser: argparse.ArgumentParser, options: argparse.Namespace) -> InputError:
    """The error for an argument that the verb does not have."""
    command = "etbuild"
    while found := [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]:
        chosen = str(getattr(options, found[0].dest))
        parser, command = found[0].choices[chosen], f"{command} {chosen}"
    known = parser._option_string_actions
    hint: str | None = f"`{command} --help` shows what it takes"
    if word in known:
        hint = f"write it after `{command}`"
    elif word.startswith("-"):
        hint = did_you_mean(word.partition("=")[0], known)
    return InputError.of(f"{command}: unknown argument `{word}`", hint)


def _verbs(words: Sequence[str]) -> Sequence[str] | None:
    """Returns the verbs that need a parser: only the used one, because making parsers takes time. None for all."""
    first = words[0] if words else ""
    if first in ("--version", "--cmake-prefix-path"):
        return []
    known = first in VERBS or first in plugins.group("verb") or first in plugins.group("hidden_verb")
    return [first] if known else None


def sections() -> dict[str, dict[str, str]]:
    """The verbs that the help lists, each with an example, by the title of their section.

    A section has the verbs of the core first, then those of the plug-in with most verbs in it, then the others.
    """
    found = {title: {verb: each[verb] for verb in each if verb in VERBS} for title, each in SECTIONS.items()}
    of_plugins = [section for plugin in plugins.plugins().values() for section in plugin.help.items()]
    for title, listed in sorted(of_plugins, key=lambda section: -len(section[1])):
        found.setdefault(title, {}).update(listed)
    return found


def command_parser(verbs: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the command line, with these verbs, or with all but hidden ones."""
    codes = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
    parser = _Parser(
        prog="etbuild",
        description="Turns a manifest and a PyTorch model into an ExecuTorch program.",
        epilog=f"exit codes: {codes}. `etbuild VERB --help` shows the options of a verb, with an example. Build rules "
        "also use the verbs export, lower, compare, report, page, etrecord, reproduce and runtime.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action=_Print, nargs=0, const=_version, help="show program's version number and exit"
    )
    parser.add_argument(
        "--cmake-prefix-path",
        action=_Print,
        nargs=0,
        const=lambda: Path(__file__).parents[1] / "cmake",
        help="print the directory in which CMake finds the package etbuild, and exit",
    )
    registered = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_VerbParser)
    for verb in dict.fromkeys((*_examples(), *VERBS, *plugins.group("verb"))) if verbs is None else verbs:
        module = _module(verb)
        module.add(registered)
        more = plugins.load("verb_option", verb) if verb in plugins.group("verb_option") else None
        run = module.run if more is None else more.add(registered.choices[verb], module.run)
        registered.choices[verb].set_defaults(run=run)
    return parser


def _examples() -> dict[str, str]:
    """The verbs that the help lists, each with its example."""
    return {verb: example for listed in sections().values() for verb, example in listed.items()}


def _module(verb: str) -> ModuleType:
    if verb in VERBS:
        return importlib.import_module(f"etbuild.cli.{verb}")
    module: ModuleType = plugins.load("verb" if verb in plugins.group("verb") else "hidden_verb", verb)
    return module


class _Parser(argparse.ArgumentParser):
    """A parser whose help lists the verbs in sections."""

    def format_help(self) -> str:
        """The help."""
        verbs = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        summaries = {action.dest: action for action in verbs._choices_actions}
        shown = {
            title: [summaries[verb] for verb in listed if verb in summaries] for title, listed in sections().items()
        }
        shown["options"] = [action for action in self._actions if action is not verbs]
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, actions in shown.items():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


class _VerbParser(argparse.ArgumentParser):
    """A parser of a verb, whose help ends with the verb's example."""

    def format_help(self) -> str:
        """The help."""
        if example := _examples().get(self.prog.partition(" ")[2]):
            self.epilog = f"example: {example}"
        return super().format_help()


class _Print(argparse.Action):
    """Prints what `const` returns. The action `version` would break a long path into lines."""

    def __call__(self, parser: argparse.ArgumentParser, *values: object) -> None:
        print(self.const())
        parser.exit()


def _version() -> str:
    from etbuild.version import VERSION  # an action of Bazel has none, so that a release runs none again

    return f"etbuild {VERSION}"
