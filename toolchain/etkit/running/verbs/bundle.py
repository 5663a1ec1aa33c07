"""`etbuild bundle`: bundles a program with test vectors, for devices."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import (
    add_flag,
    add_inputs,
    add_manifest,
    add_parser,
    add_path,
    add_rule_names,
    add_value,
    inputs,
)
from etbuild.errors import InputError
from etkit.local.options import add_cache
from etkit.local.progress import speak
from etkit.program import add_program, build_into, check_program, load

if TYPE_CHECKING:
    from etbuild.manifest.validate import Manifest
    from etbuild.plan.plan import Plan
    from etkit.running.testing.bundle import Bundle
    from etplugins.model_tests.parts import TestPlan


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "bundle",
        "bundle a program with test vectors for devices",
        "Writes NAME.bpte: the program, the inputs of its tests, and the outputs of the model in eager PyTorch. "
        "ExecuTorch's runner compares them on a device.",
    )
    add_manifest(parser)
    add_inputs(parser)
    add_path(parser, "-o, --out FILE", "the file to write (default: NAME.bpte)", dest="output")
    add_program(parser, "bundle")
    add_value(parser, "--filter PATTERN", "take only tests with such names: `decode/*`")
    add_cache(parser)
    rule = add_rule_names(parser)
    add_flag(rule, "--declared-only", "leave out the cases of the manifest that read other files")


def run(options: argparse.Namespace) -> int:
    """Writes the bundled program, and lists its vectors."""
    from etbuild.manifest.positions import locating
    from etbuild.publishing import artifacts

    check_program(options)
    loaded, plan = load(options)
    output = options.output or Path(f"{plan.name}.bpte")
    if output.suffix != ".bpte":
        raise InputError.of(f"-o {output}: the name must end with .bpte")
    speak()
    options.restart()  # then a crash of native code is reported as an error
    with locating(loaded.positions):
        found = _bundle(options, loaded, plan)
    artifacts.replace(output, found.content)
    _tell(output, found)
    return 0


def _bundle(options: argparse.Namespace, loaded: Manifest, plan: Plan) -> Bundle:
    from etkit.local.progress import Steps
    from etkit.running.testing.run import TestOptions, opened
    from etplugins.model_tests.parts import tests_of
    from etplugins.runtime import program_files

    declared = inputs(options, [options.manifest.parent, *options.root])
    tests = _possible(tests_of(loaded.data, plan.methods), options)
    how = TestOptions(stage=Steps().stage)
    with tempfile.TemporaryDirectory() as scratch:
        program = options.program or build_into(options, options.manifest, plan, Path(scratch))
        files = program_files.read(program, options.named_data)
        with opened(plan, tests, files, declared, how) as tester:
            from etkit.running.testing.bundle import bundle

            with how.stage("compute the expected outputs"):
                return bundle(tester, files, options.filter)


def _possible(tests: TestPlan, options: argparse.Namespace) -> TestPlan:
    """The tests without metrics and agreements. For build rules, cases that need undeclared files are left out, too."""
    from etbuild.plan.parts import FileExample, callables_of

    cases = dict(tests.cases)
    if options.declared_only:
        files_of = inputs(options, [])
        sources = {name.removesuffix(".py").replace("/", ".") for name in files_of.sources}
        for name, calls in tests.cases.items():
            leaves = [leaf for call in calls for leaf, _ in call.leaves]
            files = [leaf.file for leaf in leaves if isinstance(leaf, FileExample) and leaf.file not in files_of.data]
            code = [each for each in callables_of(leaves) if each.partition(":")[0] not in sources]
            if files or code:
                print(
                    f"note: `cases/{name}` cannot be a test vector: {[*files, *code][0]} is not declared",
                    file=sys.stderr,
                )
                del cases[name]
    return tests.replace(cases=cases, metrics=(), agreements=(), labels={})


def _tell(output: Path, found: Bundle) -> None:
    from etbuild.errors import printable
    from etkit.tables import size, table

    for name, why in found.left_out.items():
        print(f"note: `{printable(name)}` cannot be a test vector: {printable(why)}", file=sys.stderr)
    for each in found.vectors:
        if each.outputs is None:
            why_not = "a bundle holds only tensors as outputs, so the vector has only inputs"
            print(f"note: `{printable(each.case)}`: {why_not}", file=sys.stderr)
    if not found.verified:
        print("note: the runtime here lacks a backend of the program, so it has run no vector", file=sys.stderr)
    rows = [("method", "vector", "test", "rtol", "atol")]
    rows += [(e.method, str(e.number), e.case, f"{e.rtol:.3g}", f"{e.atol:.3g}") for e in found.vectors]
    print(f"{printable(str(output))}  {size(len(found.content))}\n{table(rows)}")
