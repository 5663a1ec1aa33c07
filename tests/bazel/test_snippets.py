"""Loads and analyses the Starlark of the project's pages as users paste it. `tests/helpers/snippets.py` collects it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.snippets import Snippet, continued, snippets, starlark_file
from tests.helpers.workspaces import REPOSITORY, Workspace

STUB = """\
load(
    "@rules_executorch//rules:defs.bzl",
    "ExecutorchExportInfo",
    "ExecutorchProgramInfo",
    "ExecutorchProgramInputsInfo",
)

def _stub_impl(ctx):
    file = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.write(file, "")
    return [
        CcInfo(),
        DefaultInfo(files = depset([file])),
        PyInfo(transitive_sources = depset([file])),
        ExecutorchExportInfo(
            data = [],
            directory = file,
            examples = file,
            exported_methods = {},
            input_digests = file,
            lines = file,
            plan = file,
            sources = depset(),
        ),
        ExecutorchProgramInputsInfo(
            inputs = struct(
                adapters = [],
                data = [],
                installed = depset(),
                source_files = depset(),
                sources = depset(),
                tokenizer = [],
                weights = [],
            ),
            manifest = file,
            name = ctx.label.name,
            parameters = {},
            variant = "",
        ),
        ExecutorchProgramInfo(
            backends = [],
            index = file,
            methods = [],
            named_data = {},
            pte = file,
            report = file,
            tokenizer = None,
        ),
    ]

stub = rule(implementation = _stub_impl)
"""
"""What a page says the reader has already: a target that stands for a program, a library of C++, and a file."""
ELSEWHERE = re.compile(
    r'"(?:@(?!rules_executorch|platforms|bazel_tools)(\w+))?//(?!conditions|visibility)([\w/-]*):?([\w.-]*)"'
)


def of(*kinds: str) -> list[Snippet]:
    """The blocks that are parts of such files."""
    return [
        each
        for each in snippets()
        if each.language == "starlark" and each.verdict == "run" and starlark_file(each) in kinds
    ]


def rules_of(snippet: Snippet) -> str:
    """The block with rules that a page shows before a block of a BUILD file."""
    shown = [each for each in of("defs.bzl") if each.page == snippet.page and each.line < snippet.line]
    return continued(shown[-1])


def package(snippet: Snippet) -> str:
    return "snippets/" + re.sub(r"\W", "_", snippet.place)


@pytest.fixture(scope="module")
def analysed(checkout: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What Bazel says about all blocks. Each is a package, and labels of other packages and repositories are stubs."""
    stubs: dict[tuple[str, str], set[str]] = {}
    written: list[str] = []

    def write(path: str, text: str) -> None:
        written.append(path)
        checkout.write(path, text)

    write("snippets/BUILD", "")
    write("snippets/stub.bzl", STUB)
    for snippet in of("BUILD", "defs.bzl"):
        text = continued(snippet)
        for repository, folder, name in ELSEWHERE.findall(text):
            named = stubs.setdefault((repository, folder), set())
            if name.endswith(".bzl"):  # what the page shows before
                write(f"{folder}/{name}", rules_of(snippet))
            else:
                named.add(name or folder.rpartition("/")[2])
        if starlark_file(snippet) == "defs.bzl":
            write(f"{package(snippet)}/defs.bzl", text)
            text = "".join(
                f'load(":defs.bzl", "{name}")\n' for name in re.findall(r"^(\w+) = rule\(", text, re.MULTILINE)
            )
        write(f"{package(snippet)}/BUILD", f'load("//snippets:stub.bzl", "stub")\n\n{text}')
    roots = {each: tmp_path_factory.mktemp(each) for each, _ in stubs if each}
    for (repository, folder), names in stubs.items():
        text = 'load("@rules_executorch//snippets:stub.bzl", "stub")\n\n' + "".join(
            f'stub(name = "{name}", visibility = ["//visibility:public"])\n' for name in sorted(names)
        )
        if repository:
            (roots[repository] / "WORKSPACE").touch()
            (roots[repository] / folder).mkdir(parents=True, exist_ok=True)
            (roots[repository] / folder / "BUILD").write_text(text)
        else:
            write(f"{folder}/BUILD", text)
    overrides = [f"--override_repository={repository}={root}" for repository, root in roots.items()]
    options = (checkout.override, *overrides, "--nobuild", "--keep_going", "--color=no")
    done = checkout.bazel("build", *options, "//snippets/...")
    yield done.stderr
    for path in written:
        (checkout.directory / path).unlink()


@pytest.mark.parametrize("snippet", [pytest.param(each, id=each.place) for each in of("BUILD", "defs.bzl")])
def test_a_build_file(snippet: Snippet, analysed: str) -> None:
    assert "Analyzed" in analysed, analysed
    about = [line for line in analysed.splitlines() if re.search(rf"{package(snippet)}\b", line)]
    wrong = [line for line in about if line.startswith("ERROR")]
    if wrong:
        pytest.fail(f"{snippet.place}: Bazel does not load this block\n" + "\n".join(wrong), pytrace=False)


def test_a_workspace_file(checkout: Workspace, tmp_path: Path, output_root: Path, packages: Path) -> None:
    """All blocks in one file, in the order that Bazel wants, and without what an earlier block has too."""
    found = of("WORKSPACE")
    assert found
    root = Workspace(tmp_path, output_root, packages)
    (tmp_path / "third_party").mkdir()
    (tmp_path / "third_party/rules_executorch").symlink_to(checkout.directory)
    stubs = REPOSITORY / "tests/bazel/stubs"
    lines = [f'local_repository(name = "{name.name}", path = "{name}")' for name in stubs.iterdir()]
    lines += [ast.unparse(each) for snippet in found for each in ast.parse(snippet.text).body]
    first = ("local_repository(", "load(")
    ordered = sorted(
        dict.fromkeys(lines), key=lambda line: next((n for n, call in enumerate(first) if line.startswith(call)), 2)
    )
    text = "\n".join(ordered)
    root.write("WORKSPACE", text)
    root.write("BUILD", "")
    root.write("models/BUILD", 'exports_files(["more.lock"])')
    root.write("models/more.lock", "")
    done = root.bazel("query", root.override, "//...")
    root.stop()
    places = ", ".join(each.place for each in found)
    assert done.returncode == 0, f"{places}: {done.stderr}\nin {text}"


def test_a_module_file(
    checkout: Workspace,
    tmp_path: Path,
    packages: Path,
    modern_bazel: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Each block is the file of a module. Bazel evaluates the extension for all of them."""
    root = ['module(name = "root")', 'bazel_dep(name = "rules_executorch", version = "0.1.0")']
    root.append(f'local_path_override(module_name = "rules_executorch", path = "{checkout.directory}")')
    root.append('executorch = use_extension("@rules_executorch//rules:extensions.bzl", "executorch")')
    root.append('use_repo(executorch, "rules_executorch_host")')
    places = {}
    for number, snippet in enumerate(of("MODULE.bazel")):
        name = f"page{number}"
        places[name] = snippet.place
        text = continued(snippet)
        if 'bazel_dep(name = "rules_executorch"' not in text:
            text = f'bazel_dep(name = "rules_executorch", version = "0.1.0")\n{text}'
        directory = tmp_path / "modules" / name
        (directory / "models").mkdir(parents=True)
        (directory / "models/BUILD").write_text('exports_files(["more.lock"])')
        (directory / "models/more.lock").touch()
        (directory / "MODULE.bazel").write_text(f'module(name = "{name}", version = "1")\n{text}')
        root.append(f'bazel_dep(name = "{name}", version = "1")')
        root.append(f'local_path_override(module_name = "{name}", path = "modules/{name}")')
    workspace = tmp_path
    (workspace / "MODULE.bazel").write_text("\n".join(root))
    (workspace / "BUILD").touch()
    stub = REPOSITORY / "tests/bazel/stubs/rules_python"
    options = (f"--override_module=rules_python={stub}", "@rules_executorch_host//...")
    done = modern_bazel(workspace, [packages, checkout.directory, stub], "query", *options)
    assert done.returncode == 0, f"{places}: {done.stderr}"


def flags() -> list[Snippet]:
    """The lines of `.bazelrc` in docs/scale.md and docs/worker.md."""
    here = Path(__file__).relative_to(REPOSITORY).as_posix()
    return [each for each in snippets() if each.notes.get("run by") == here]


@pytest.mark.parametrize("snippet", [pytest.param(each, id=each.place) for each in flags()])
def test_options_of_bazelrc(snippet: Snippet, checkout: Workspace) -> None:
    options = [word for line in snippet.text.splitlines() for word in line.split()[1:]]
    done = checkout.bazel("canonicalize-flags", "--for_command=build", "--", *options)
    assert done.returncode == 0, f"{snippet.place}: {done.stderr}"
