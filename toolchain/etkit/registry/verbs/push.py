"""`etbuild push`: pushes a package to a registry, or builds to Hugging Face."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from etbuild.cli.options import add_flag, add_parser, add_path, add_repeatable, add_value
from etbuild.errors import counted
from etkit.registry import registry_options


def add(verbs: Any) -> None:
    """Registers the verb."""
    parser = add_parser(
        verbs,
        "push",
        "push a package to a registry, or builds to Hugging Face",
        "Sends only what the registry does not have. To hf:OWNER/NAME go the files of a directory of builds, in one "
        "commit that removes what they supersede.",
    )
    add_path(
        parser,
        "LAYOUT",
        "the directory that `etbuild package` or executorch_package wrote; for hf:OWNER/NAME a directory of builds",
    )
    add_value(
        parser,
        "REFERENCE",
        "REGISTRY/REPOSITORY or REGISTRY/REPOSITORY:TAG, where the package goes; or hf:OWNER/NAME[@BRANCH]",
    )
    add_value(parser, "--registry HOST", "push to this registry in place of the reference's")
    add_repeatable(
        parser,
        "--tag TAG",
        "a tag of the package, which may hold stamp values, such as v-{STABLE_GIT_COMMIT}",
        dest="tags",
    )
    add_repeatable(
        parser, "--tag-file FILE", "a text file with more such tags, one a line", dest="tag_files", type=Path
    )
    add_repeatable(
        parser,
        "--forward-tag TAG",
        "a tag that moves only forward: it stays where it is if it names a package with a later annotation "
        "`org.opencontainers.image.created`",
        dest="forward_tags",
    )
    add_repeatable(
        parser,
        "--stamp-file FILE",
        "a file of stamp values, with a key and its value on each line, as Bazel writes it",
        dest="stamp_files",
        type=Path,
    )
    add_repeatable(
        parser,
        "--mount-from REPOSITORY",
        "another repository of the registry, which may have files of the package already",
    )
    add_value(
        parser,
        "--sign COMMAND",
        "before the tags move, run this command with REGISTRY/REPOSITORY@sha256:DIGEST as its last argument, such "
        "as `cosign sign --key cosign.key`",
    )
    add_value(parser, "--message TEXT", "the message of the commit on Hugging Face")
    add_flag(parser, "--private", "make a new repository on Hugging Face private")
    registry_options.add(parser)


_OF_REGISTRIES = (
    *("registry", "tags", "tag_files", "forward_tags", "stamp_files", "mount_from", "sign"),
    *("jobs", "plain_http", "ca_file", "stall_seconds"),
)
_OF_HUB = ("message", "private")


def _refuse(options: argparse.Namespace, names: Sequence[str], what: str) -> None:
    from etbuild.errors import InputError

    for name in names:
        given = getattr(options, name)
        if given and given != registry_options.DEFAULTS.get(name):
            option = name.replace("_", "-").replace("tags", "tag").replace("files", "file")
            raise InputError.of(f"--{option} does not go with {what}", "leave it out")


def _push_to_hub(options: argparse.Namespace) -> int:
    """Pushes builds to Hugging Face, and prints the address of the commit."""
    _refuse(options, _OF_REGISTRIES, "hf:OWNER/NAME")

    from etkit.registry import hub

    to = hub.target(options.reference)
    pushed = hub.push(options.layout, to, options.message or f"Push {options.layout.resolve().name}", options.private)
    if options.json:
        print(json.dumps(asdict(pushed), indent=2))
        return 0
    print(f"{counted(len(pushed.files), 'file')} pushed, {len(pushed.removed)} removed")
    print(pushed.url)
    return 0


def run(options: argparse.Namespace) -> int:
    """Pushes the package, and prints its digest."""
    if options.reference.startswith("hf:"):
        return _push_to_hub(options)
    _refuse(options, _OF_HUB, "a registry")
    from etbuild.errors import InputError
    from etkit.registry.oci import layout, reference

    target = reference.parse(options.reference)
    if target.sha256:
        raise InputError.of(f"{target}: a package cannot be pushed to a digest", "write a tag, or only the repository")
    if options.registry:
        target = reference.moved(target, options.registry)
    stamps = reference.read_stamps(options.stamp_files)
    wanted = options.tags + [tag for path in options.tag_files for tag in reference.read_tags(path)]
    tags = [reference.tag(tag, stamps) for tag in wanted] + ([target.tag] if target.tag else [])
    forward_tags = [reference.tag(tag, stamps) for tag in options.forward_tags]
    both = sorted(set(tags) & set(forward_tags))
    if both:
        raise InputError.of(f"the tag `{both[0]}` is given twice, also as a --forward-tag", "give it once")
    others = [reference.parse(f"{target.registry}/{other}").repository for other in options.mount_from]
    layout.root(options.layout)

    from etkit.registry.oci import signatures, transfer

    sign = partial(signatures.sign, options.sign) if options.sign is not None else None
    with registry_options.repository(options, target) as repository, registry_options.work(options, "pushing") as work:
        content, moved, stay = transfer.push(options.layout, repository, tags, others, work, sign, forward_tags)
    tags += [tag for tag in forward_tags if tag not in stay]
    for tag in stay:
        print(f"note: {target.at(tag)} names a later package, and stays there", file=sys.stderr)
    if options.json:
        registry_options.print_json(content, moved, {"tags": tags, "stay": stay})
        return 0
    print(registry_options.summary("sent", moved))
    for name in [*tags, content.root.digest]:
        print(target.at(name))
    return 0
