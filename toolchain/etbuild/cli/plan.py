"""`etbuild plan`: shows what would be built, and its key. For build rules, it writes the plans of the later steps."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etbuild.cli.options import (
    add_flag,
    add_inputs,
    add_manifest,
    add_parser,
    add_path,
    add_repeatable,
    add_rule_names,
    add_unused_inputs,
    declared,
    inputs,
    settings,
)
from etbuild.errors import DocumentPath, InputError, Position, Positions, Problem

if TYPE_CHECKING:
    from etbuild.manifest.sections import Manifest
    from etbuild.plan.plan import Plan

_EXPECTATIONS = {
    "name": "name in the manifest",
    "methods": "methods in the manifest",
    "backends": "backends in the manifest",
    "plugins": "plug-ins that the manifest needs",
    "named-data": "tags of named data in the manifest",
    "sharded": "tags with a shard size in the manifest",
}

_DERIVED = ("leaves_weights", "weights")  # keys of an export plan that are computed from other keys
_PLACES: dict[DocumentPath, DocumentPath] = {("runner", "said"): ("constant_methods",)}
"""The places in a manifest of those parts of an export plan that are elsewhere in the manifest."""


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(verbs, "plan", help="print what would be built, and its key, as JSON")
    own = "[--variant NAME] [--set NAME=VALUE] [--root DIR] [--source NAME=FILE] [--data NAME=FILE]"
    parser.usage = f"%(prog)s [-h] {own} MANIFEST"
    add_manifest(parser)
    add_inputs(parser)
    rule = add_rule_names(parser)
    for attribute, what in _EXPECTATIONS.items():
        rule.add_argument(f"--expect-{attribute}", metavar="A,B", help=f"fail if the {what} differ")
    add_flag(rule, "--expect-inputs", help="fail if a step reads files that no --input lists for it")
    add_repeatable(
        rule,
        "--input ATTRIBUTE=NAME",
        help="a file that the target lists under ATTRIBUTE; a directory's name ends with /",
    )
    add_path(
        rule,
        "--same-export FILE",
        help="fail if the part of the plan that the export depends on differs from that in FILE",
    )
    add_path(rule, "--plan FILE", help="write the whole plan to FILE, and print nothing")
    add_path(rule, "--export-plan FILE", help="write the part of the plan that the export depends on to FILE")
    add_path(rule, "--lower-plan FILE", help="write the part of the plan that lowering depends on to FILE")
    add_path(
        rule,
        "--compare-plan FILE",
        help="write the part of the plan that the comparison with the exported methods depends on to FILE",
    )
    add_repeatable(
        rule,
        "--method-plan NAME=FILE",
        help="write the part of the plan that lowering only this method depends on to FILE",
    )
    add_repeatable(rule, "--plugins-of STEP=DIR", help="copy those plug-ins that this step of the program needs to DIR")
    add_path(rule, "--positions FILE", help="write the line numbers of the manifest to FILE")
    add_unused_inputs(rule)
    other = parser.add_argument_group("for CMake and other tools that compare times")
    add_path(other, "--key-file FILE", help="write the key to FILE unless it is there, and print nothing")
    add_path(other, "--depfile FILE", help="with --key-file: write the files that the key depends on to FILE")
    add_path(other, "--depfile-target FILE", help="the file that the depfile is about (default: --key-file)")


def run(options: argparse.Namespace) -> int:
    """Prints the plan and its key, or writes the plans or the key."""
    from etbuild import plugins
    from etbuild.manifest.positions import locating
    from etbuild.steps import plan as planning

    if options.key_file is None and (options.depfile is not None or options.depfile_target is not None):
        raise InputError.of("--depfile and --depfile-target go with --key-file")
    plan, manifest = planning.read(options.manifest, options.manifest_name, options.variant, settings(options))
    positions = manifest.positions
    with locating(positions):
        _check_expectations(plan, manifest.data, options)
        if options.program_name is not None:
            plan = plan.replace(name=options.program_name)
        if options.same_export is not None:
            _check_same_export(plan, options.same_export, positions)
        if options.plan is not None:
            plan.check_backends()
            if directories := declared("--plugins-of", options.plugins_of):
                write = plugins.load("plan_output", "plugins")
                write(plan, manifest.data, directories, options.unused_inputs)
            return _write_plans(plan, positions, options)
        from etbuild.files import digests
        from etbuild.key import dependencies, import_graph, key  # in an action of a build rule, `inputs` does not exist

        found = inputs(options, [options.manifest.parent, *options.root])
        used = import_graph.used_sources(found, plan.export_plan)
        described = key.describe_inputs(plan, found, used)
        if options.key_file is not None:
            return _write_key(options, digests.digest(described), dependencies.of_plan(plan, found, used))
    print(json.dumps({"key": digests.digest(described), "inputs": described}, indent=2, sort_keys=True))
    return 0


def _write_key(options: argparse.Namespace, key: str, files: list[Path]) -> int:
    """Writes the key, if it is not in its file yet, and the files that it depends on."""
    from etbuild.key import dependencies
    from etbuild.publishing import artifacts

    content = f"{key}\n".encode()
    if not options.key_file.is_file() or options.key_file.read_bytes() != content:
        artifacts.replace(options.key_file, content)
    if options.depfile is not None:
        # Writing the key changes the time of its directory, which must not be in the depfile.
        others = [file for file in files if file.resolve() != options.key_file.parent.resolve()]
        text = dependencies.depfile(options.depfile_target or options.key_file, [options.manifest, *others])
        artifacts.replace(options.depfile, text.encode())
    return 0


def _check_expectations(plan: Plan, manifest: Manifest, options: argparse.Namespace) -> None:
    from etbuild.manifest import plugin_sections
    from etbuild.plan.expectations import check_expectations, check_inputs, check_name, check_tokenizer

    if options.expect_name is not None:
        check_name(plan, options.expect_name, options.program_name, options.variant)

    def expected(attribute: str) -> list[str] | None:
        text = getattr(options, f"expect_{attribute}")
        return None if text is None else [value for value in text.split(",") if value]

    tags, sharded = expected("named_data"), expected("sharded") or []
    check_expectations(
        plan,
        {
            **{attribute: expected(attribute) for attribute in ("methods", "backends", "plugins")},
            "named_data": None if tags is None else [tag for tag in tags if tag not in sharded],
            "sharded_named_data": None if tags is None else sharded,
        },
        plugin_sections.needed(manifest),
    )
    listed = _inputs_of_target(options.input)
    if options.expect_inputs:
        if not any(name.endswith("/") for name in listed["tokenizer"]):
            check_tokenizer(plan, listed["tokenizer"])
        check_inputs(plan, listed)


def _inputs_of_target(given: list[str]) -> dict[str, list[str]]:
    from etbuild.plan.expectations import INPUTS

    listed: dict[str, list[str]] = {attribute: [] for attribute in INPUTS}
    for value in given:
        attribute, separator, name = value.partition("=")
        if attribute not in listed or not separator or not name:
            raise InputError.of(f"--input {value}: expected {', '.join(f'{each}=NAME' for each in INPUTS)}")
        listed[attribute].append(name)
    return listed


def _check_same_export(plan: Plan, file: Path, positions: Positions) -> None:
    """Checks that a program can use an export that was made for another program."""
    from etbuild.files.json_diff import changes
    from etbuild.plan.step_plans import ExportPlan, read_plan

    paths = [change.path for change in changes(read_plan(file, ExportPlan).to_json(), plan.export_plan.to_json())]
    message = "the program and the target of `export` would not export the same"
    hint = 'remove `export` from the target; in `executorch_programs`, write `"export": None` for this variant'
    places = [_PLACES.get(path[:2], path) for path in paths if path[0] not in _DERIVED]
    if paths:
        raise InputError(
            [Problem(message, _written(path, positions), hint) for path in places or [("model", "weights")]]
        )


def _written(path: DocumentPath, positions: Positions) -> DocumentPath:
    """The place in the manifest of a value in a plan. In the plan, each method also has the values that it inherits."""
    inherited = ("defaults", *path[2:])
    return inherited if path[0] == "methods" and path not in positions and inherited in positions else path


def _write_plans(plan: Plan, positions: dict[DocumentPath, Position], options: argparse.Namespace) -> int:
    from etbuild.files.digests import canonical_json
    from etbuild.publishing import artifacts
    from etbuild.steps import plan as planning

    methods = declared("--method-plan", options.method_plan)
    outputs = [(path, planning.of_method(plan, name)) for name, path in methods.items()]
    outputs += [(getattr(options, name), content) for name, content in planning.contents(plan, positions).items()]
    for path, content in outputs:
        if path is not None:
            artifacts.replace(path, canonical_json(content))
    return 0
