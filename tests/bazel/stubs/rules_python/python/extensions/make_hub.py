"""Makes a package for each distribution of a lock of pip or uv in a site directory: make_hub.py SITE_PACKAGES LOCK"""

import re
import sys
from importlib import metadata
from pathlib import Path

BUILD = """\
load("@rules_python//python:defs.bzl", "py_library")

py_library(
    name = "{name}",
    srcs = glob(["site-packages/**/*.py"], allow_empty = True),
    data = glob(
        ["site-packages/**/*"],
        exclude = ["**/*.py", "**/*.pyc", "**/*.dist-info/RECORD", "**/* *"],
    ),
    imports = ["site-packages"],
    visibility = ["//visibility:public"],
    deps = {deps},
)
"""


def label(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def main(site: Path, lock: str) -> None:
    locked = {label(name) for name in re.findall(r'^(?:name = ")?([\w.-]+)(?:"$|==)', lock, re.MULTILINE)}
    installed = {label(each.metadata["Name"]): each for each in metadata.distributions(path=[str(site)])}
    found = {name: each for name, each in installed.items() if name in locked}
    for name, distribution in found.items():
        needed = [each for each in distribution.requires or () if "extra ==" not in each]
        names = sorted({label(re.split(r"[^\w.-]", each)[0]) for each in needed} & found.keys())
        directory = Path(name, "site-packages")
        directory.mkdir(parents=True)
        for top in {str(file).split("/")[0] for file in distribution.files or () if not str(file).startswith("..")}:
            if top != "__pycache__" and (site / top).exists():
                (directory / top).symlink_to(site / top)
        Path(name, "BUILD").write_text(BUILD.format(name=name, deps=[f"//{each}" for each in names]), "utf-8")
    Path("BUILD").touch()


main(Path(sys.argv[1]), Path(sys.argv[2]).read_text("utf-8"))
