"""A model card: Markdown with front matter, as Hugging Face shows it on the page of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from etbuild.errors import counted, printable
from etbuild.files import regular_files
from etkit.kept_results import Results
from etkit.publishing.builds import Build
from etkit.publishing.markdown import code, line, paragraph
from etkit.tables import size

FILE = "README.md"
"""The file that Hugging Face shows on the page of a model."""
_MARK = "<!-- Written by `etbuild card`. -->"
_MOST_BYTES = 16 << 20  # of a card that is there already
_NO_NAMED_DATA = "1.4."  # the release of ExecuTorch whose `Runtime.load_program` takes none
_LABELS = 20  # that are shown
_RESULTS = 200  # that are shown of a program

# The identifiers of https://huggingface.co/docs/hub/repositories-licenses that are SPDX identifiers in lower case.
_LICENSES = frozenset(
    (
        *("afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear"),
        *("bsl-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0"),
        *("cc-by-nc-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0"),
        *("cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "ecl-2.0", "epl-1.0"),
        *("epl-2.0", "etalab-2.0", "eupl-1.1", "eupl-1.2", "gpl-2.0", "gpl-3.0", "isc", "lgpl-2.1", "lgpl-3.0"),
        *("lppl-1.3c", "mit", "mpl-2.0", "ms-pl", "ncsa", "ofl-1.1", "osl-3.0", "postgresql", "unlicense", "wtfpl"),
        "zlib",
    )
)
_TAGS: dict[str, str | None] = {
    "audio-codec": None,
    "seq2seq": "text2text-generation",
    "speech-to-text": "automatic-speech-recognition",
    "semantic-segmentation": "image-segmentation",
    "time-series-prediction": "time-series-forecasting",
    "universal-segmentation": "image-segmentation",
}
"""Tasks of manifests that Hugging Face calls otherwise; None if it has none. It has the other names too."""
_BACKENDS = {"XnnpackBackend": "xnnpack", "CoreMLBackend": "coreml", "VulkanBackend": "vulkan", "QnnBackend": "qnn"}
"""The tags of backends that people look for."""


@dataclass(frozen=True)
class Asked:
    """What the builds do not say.

    Attributes:
        base_model: The model on Hugging Face that it comes from.
        pipeline_tag: The task, as Hugging Face calls it.
        languages: The languages of the model.
        tags: More tags.
    """

    base_model: str | None = None
    pipeline_tag: str | None = None
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


def is_foreign(path: Path) -> bool:
    """Whether there is such a file, and another program or a person has written it."""
    try:
        return _MARK.encode() not in regular_files.read(path, _MOST_BYTES)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def text(builds: Sequence[Build], left_out: Sequence[Results], asked: Asked) -> str:
    """The card of some builds.

    Args:
        builds: The builds, sorted by the names of their programs.
        left_out: The results of variants that did not qualify.
        asked: What the builds do not say.
    """
    front = yaml.safe_dump(_front_matter(builds, asked), sort_keys=False, allow_unicode=True, width=1000)
    names = list(dict.fromkeys(build.base for build in builds))
    sections = [
        [f"# {', '.join(map(line, names))}", *_described(builds)],
        _pictures(builds),
        ["## Programs", "", *_programs(builds)],
        _left_out(left_out),
        _interfaces(builds),
        _results(builds),
        _applications(builds),
        _use(builds),
        ["## License and source", "", *_sources(builds)],
    ]
    body = "\n\n".join("\n".join(section) for section in sections if section)
    return f"---\n{front}---\n\n{_MARK}\n\n{body}\n"


def _front_matter(builds: Sequence[Build], asked: Asked) -> dict[str, Any]:
    backends = sorted({_BACKENDS[name] for build in builds for name in build.backends if name in _BACKENDS})
    tag = asked.pipeline_tag or _task(builds)
    return {
        **_license({build.metadata.get("license") for build in builds}),
        **({"language": list(asked.languages)} if asked.languages else {}),
        "library_name": "executorch",
        **({"pipeline_tag": tag} if tag else {}),
        **({"base_model": asked.base_model} if asked.base_model else {}),
        "tags": list(dict.fromkeys(["executorch", *backends, *asked.tags])),
    }


def _license(stated: set[str | None]) -> dict[str, str]:
    """The license as Hugging Face writes it; nothing if the programs state none, or different ones."""
    found = next(iter(stated)) if len(stated) == 1 else None
    if found is None:
        return {}
    short = re.sub(r"-(only|or-later)$", "", found.lower())
    return {"license": short} if short in _LICENSES else {"license": "other", "license_name": _slug(found)}


def _slug(license_text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", license_text.lower()).strip("-")[:100]


def _task(builds: Sequence[Build]) -> str | None:
    """The task of all programs; None if they have none, or several."""
    tasks = {(build.plan["model"].get("huggingface") or {}).get("task") for build in builds}
    task = next(iter(tasks)) if len(tasks) == 1 else None
    return None if task is None else _TAGS.get(task, task)


def _described(builds: Sequence[Build]) -> Iterator[str]:
    texts = dict.fromkeys(build.metadata["description"] for build in builds if "description" in build.metadata)
    for each in texts:
        yield from ("", paragraph(each))
    releases = sorted({line(build.index["versions"]["executorch"]) for build in builds})
    yield from ("", f"Programs for [ExecuTorch](https://pytorch.org/executorch), built with {', '.join(releases)}.")


def _pictures(builds: Sequence[Build]) -> list[str]:
    """What programs found in an image."""
    shown = [(build.name, _path(build, build.picture)) for build in builds if build.picture is not None]
    return [f"![What {line(name)} found]({quote(path)})" for name, path in shown]


def _programs(builds: Sequence[Build]) -> Iterator[str]:
    yield from _table(
        ("program", "files", "size", "backends", "delegated", "memory", "agreement"),
        (
            (
                code(build.name),
                ", ".join(code(_path(build, each["file"])) for each in build.shipped),
                size(build.size),
                line(", ".join(build.backends)) or "portable operators",
                "-" if build.delegated is None else f"{build.delegated:.1%}",
                "-" if build.memory is None else size(build.memory),
                _agreement(build),
            )
            for build in builds
        ),
    )
    yield from (
        "",
        "*Delegated* is the part of the operators that a backend runs. *Memory* is what the program plans for a call "
        "of the method that needs most; backends take more.",
    )


def _path(build: Build, file: str) -> str:
    return f"{build.folder}/{file}" if build.folder else file


def _agreement(build: Build) -> str:
    """How near a program is to its model, if that was measured."""
    found = [each for each in build.results if each.name.startswith("checks/agreement/")]
    return "; ".join(line(f"{each.name.rpartition('/')[2]}: {each.detail}") for each in found) or "-"


def _left_out(left_out: Sequence[Results]) -> list[str]:
    if not left_out:
        return []
    failed = [(each.name, [one.detail for one in each.results if one.state == "failed"]) for each in left_out]
    rows = [(code(name), "; ".join(map(line, why)) or "-") for name, why in failed]
    lead = "These variants were built, and do not have what their manifest asks for. They are not among the files."
    return ["## What did not qualify", "", lead, "", *_table(("variant", "why"), rows)]


def _interfaces(builds: Sequence[Build]) -> list[str]:
    """The inputs and outputs, once for all programs that have the same ones."""
    groups: list[tuple[dict[str, Any], list[str]]] = []
    for build in builds:
        of_same = next((names for interface, names in groups if interface == build.interface), None)
        if of_same is None:
            groups.append((build.interface, [build.name]))
        else:
            of_same.append(build.name)
    lines = ["## Inputs and outputs"]
    for interface, names in groups:
        if len(groups) > 1:
            lines += ["", f"### {', '.join(map(code, names))}"]
        for method, sides in interface.items():
            rows = [
                (side[:-1], str(index), line(value["name"]) if "name" in value else "-", _type(value), _meaning(value))
                for side in ("inputs", "outputs")
                for index, value in enumerate(sides[side])
            ]
            lines += ["", f"The method {code(method)}:", "", *_table(("", "number", "name", "type", "meaning"), rows)]
            lines += _labels(sides)
    return lines if len(lines) > 1 else []


def _type(value: dict[str, Any]) -> str:
    if "dtype" not in value:
        return line(value.get("type", "")) or "-"
    sizes = ", ".join(map(str, value["shape"]))
    return f"{line(value['dtype'])} [{sizes}]" + (" or less" if value["dynamic"] else "")


def _meaning(value: dict[str, Any]) -> str:
    """What an input or output means, on one line."""
    told = [line(value["meaning"])] if "meaning" in value else []
    told += [f"layout {line(value['layout'])}"] if "layout" in value else []
    told += [f"colors {value['colors']}"] if "colors" in value else []
    if "mean" in value or "deviation" in value:
        mean, deviation = value.get("mean", [0]), value.get("deviation", [1])
        told.append(f"(pixel / 255 - {_numbers(mean)}) / {_numbers(deviation)}")
    told += [f"from {value['range'][0]:g} to {value['range'][1]:g}"] if "range" in value else []
    told += [f"in {line(value['unit'])}"] if "unit" in value else []
    told += [counted(len(value["labels"]), "label")] if "labels" in value else []
    return "; ".join(told) or "-"


def _numbers(numbers: Sequence[float]) -> str:
    return f"{numbers[0]:g}" if len(numbers) == 1 else f"[{', '.join(f'{number:g}' for number in numbers)}]"


def _labels(sides: dict[str, Any]) -> Iterator[str]:
    for value in [*sides["inputs"], *sides["outputs"]]:
        if labels := value.get("labels"):
            shown = ", ".join(f"{index} {line(label)}" for index, label in enumerate(labels[:_LABELS]))
            more = f", and {len(labels) - _LABELS:,} more in the file NAME.index.json" if len(labels) > _LABELS else ""
            yield from ("", f"Labels of {code(value['name'])}: {shown}{more}.")


def _results(builds: Sequence[Build]) -> list[str]:
    rows = [
        (code(build.name), line(each.name), each.state, line(each.detail) or "-")
        for build in builds
        for each in build.results[:_RESULTS]
    ]
    return ["## What was measured", "", *_table(("program", "test", "result", "measured"), rows)] if rows else []


def _applications(builds: Sequence[Build]) -> list[str]:
    rows = [
        (
            code(build.name),
            line(kind),
            line(facts["library"]),
            line(facts["release"]),
            line(", ".join(facts["links"])) or "-",
        )
        for build in builds
        for kind, facts in build.applications.items()
    ]
    lead = "The builds check that these applications can load the programs. They link:"
    return (
        ["## Applications", "", lead, "", *_table(("program", "for", "library", "release", "parts"), rows)]
        if rows
        else []
    )


def _use(builds: Sequence[Build]) -> list[str]:
    build = next((build for build in builds if build.methods), None)
    if build is None:
        return []
    method = "forward" if "forward" in build.methods else min(build.methods)
    files = {artifact["kind"]: _path(build, artifact["file"]) for artifact in reversed(build.shipped)}
    given = ", ".join(_argument(value) for value in build.methods[method]["inputs"])
    data = f", data_path={_python(files['named_data'])}" if "named_data" in files else ""
    has_call = "named_data" not in files or not build.index["versions"]["executorch"].startswith(_NO_NAMED_DATA)
    several = sum(artifact["kind"] == "named_data" for artifact in build.shipped) > 1
    is_odd = any(not value.get("dtype", "float32").isidentifier() for value in build.methods[method]["inputs"])
    return (
        []
        if several or is_odd or not has_call
        else [
            "## Use",
            "",
            f"With the Python package `executorch` {line(build.index['versions']['executorch'])}:",
            "",
            "```python",
            "import torch",
            "from executorch.runtime import Runtime",
            "",
            f"program = Runtime.get().load_program({_python(files['program'])}{data})",
            f"outputs = program.load_method({_python(method)}).execute([{given}])",
            "```",
        ]
    )


def _python(words: str) -> str:
    """A text as Python writes it."""
    return printable(json.dumps(words, ensure_ascii=False))


def _argument(value: Any) -> str:
    """An input of a call."""
    return f"torch.zeros({value['shape']}, dtype=torch.{value['dtype']})" if "dtype" in value else repr(value["value"])


def _sources(builds: Sequence[Build]) -> Iterator[str]:
    rows = []
    for build in builds:
        weights = build.metadata.get("weights_licenses", {})
        rows.append(
            (
                code(build.name),
                line(build.metadata.get("version", "-")),
                line(build.metadata.get("license", "-")),
                ", ".join(f"{line(name)}: {line(each)}" for name, each in sorted(weights.items())) or "-",
                line(", ".join(build.metadata.get("authors", ())) or "-"),
                f"`{build.index['key'][:16]}`",
            )
        )
    yield from _table(("program", "version", "license", "licenses of weights", "authors", "key"), rows)
    releases = sorted(
        {f"{line(name)} {line(release)}" for build in builds for name, release in build.index["versions"].items()}
    )
    yield from (
        "",
        f"Built with {', '.join(releases)}. `NAME.index.json` lists the digests of all sources, weights and packages; "
        "the same inputs give the same bytes.",
    )


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield f"|{'---|' * len(heading)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
