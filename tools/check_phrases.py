"""Finds phrases that readers have to translate, and says what to write instead.

    python tools/check_phrases.py [FILE ...]

Without files, it checks the documents, Python sources, Starlark files and schemas that git tracks. Names of tests count
as sentences. It exits with 1 if it finds a phrase.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".md", ".py", ".bzl", ".schema.json")

# Not checked: this file, and the test that shows what it finds.
EXAMPLES = ("tools/check_phrases.py", "tests/unit/test_check_phrases.py")

# Phrases that must not come back, and what to write instead. A space stands for any white space, also for a line break
# in a comment. Add a phrase when you rewrite it for the second time.
PHRASES = {
    r"(?<!left )alone": "only",
    r"of which (none|no|all|each|every|one|only)": "a second sentence",
    r"the (whole )?road": "the build, or the step that is meant",
    r"(?<!there )(is|are) (?-i:none)(?=[.,;:)]| of| that)": "what it is: unknown, not one of ...",
    r"mend(s|ed|ing)?": "fix",
    r"(is|are|be) (not )?believed( in)?|believes?": "trusted, verified, or used",
    r"what may be read\.": "the type, and what the value is",
    r"whatever (that|it) (was|is)": "nothing, or a condition",
    r"at (most|least) \S+ (are|is) (allowed|asked for)": "the limit is ..., or ... requires ...",
    r"goes? on where": "continues where",
    r"(both times )?from nothing": "without the cache",
    r"no ?one knows|who knows": "unknown, or cannot know",
    r"(is|are|be) passed over": "is ignored",
    r"(has|have) the last word": "overrides",
    r"of one's own": "your own",
    r"is no (bug|error|vulnerability|part|sandbox)(?! (at|in|on|for|of) )": "is not a ...",
    r"(lie|lies|lay) (in|beside|below|outside|under|there|with)": "is, or is stored",
    r"what (goes|is) wrong (for|with)": "the error, or the problem",
    r"in a user's words": "for users",
    r"here \"?needs\"? stands for": '"needs X": ...',
    r"to have it otherwise": "to turn it off, or to change it",
    r"(?<=[a-z] )besides(?=[.;:])": "also, or in addition",
}


class Finding(NamedTuple):
    """A phrase in a text.

    Attributes:
        line: The line on which it begins, from 1.
        text: The phrase as it is written there.
        instead: What to write instead.
    """

    line: int
    text: str
    instead: str


def _pattern(phrase: str) -> re.Pattern[str]:
    # A lookbehind must have a fixed width, so its spaces are not replaced.
    parts = re.split(r"(\(\?<[=!][^)]*\))", phrase)
    spaced = [part if part.startswith("(?<") else part.replace(" ", r"\s+(?:#\s*)?") for part in parts]
    return re.compile(rf"(?:(?<=\W)|^)(?:{''.join(spaced)})(?!\w)", re.IGNORECASE)


_PATTERNS = {_pattern(phrase): instead for phrase, instead in PHRASES.items()}


def without_code(markdown: str) -> str:
    """A document without its code blocks: the text in them is quoted. Lines keep their numbers."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    return re.sub(r"^```.*?^```$|(?:^ {4}[^\n]*\n)+", blank, markdown, flags=re.DOTALL | re.MULTILINE)


def with_test_names_as_words(source: str) -> str:
    """A Python source in which the names of tests are words with spaces. Lines keep their numbers."""
    return re.sub(r"(?<=\bdef )test_\w+", lambda name: name[0].replace("_", " "), source)


def findings(text: str) -> list[Finding]:
    """The phrases in a text, in order."""
    found = [
        Finding(text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead)
        for pattern, instead in _PATTERNS.items()
        for match in pattern.finditer(text)
    ]
    return sorted(found)


# By the suffix of a file, a function that turns its text into the text to check.
_PROSE = {".md": without_code, ".py": with_test_names_as_words}


def tracked() -> Iterator[Path]:
    """The files to check, relative to the repository's root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        if name.endswith(SUFFIXES) and name not in EXAMPLES:
            yield Path(name)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="check these files only")
    count = 0
    for path in parser.parse_args(arguments).files or [ROOT / name for name in tracked() if (ROOT / name).is_file()]:
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        text = path.read_text("utf-8")
        for finding in findings(_PROSE.get(path.suffix, str)(text)):
            print(f'{shown}:{finding.line}: "{finding.text}": write {finding.instead}')
            count += 1
    if count:
        print(f"{count} phrases to rewrite", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
