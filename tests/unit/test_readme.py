"""The README and docs/getting-started.md agree with the project."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from etbuild.errors import InputError
from etbuild.manifest import validate

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
GETTING_STARTED = (ROOT / "docs/getting-started.md").read_text("utf-8")
FIRST_MANIFEST = next(block for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if "schema:" in block)


def test_the_first_manifest_is_valid(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(FIRST_MANIFEST)
    assert validate.load(tmp_path / "net.yaml").data["name"] == "net"


def test_the_second_manifest_fits_into_the_first(tmp_path: Path) -> None:
    methods = re.search(r"```yaml\n(methods:.*?)```", GETTING_STARTED, re.DOTALL)
    assert methods
    (tmp_path / "net.yaml").write_text(FIRST_MANIFEST[: FIRST_MANIFEST.index("methods:")] + methods.group(1))
    assert set(validate.load(tmp_path / "net.yaml").data["methods"]) == {"prefill", "decode"}


def test_the_error_is_what_the_driver_prints(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(FIRST_MANIFEST.replace("[xnnpack]", "[xnnpak]"))
    with pytest.raises(InputError) as error:
        validate.load(tmp_path / "net.yaml", "models/net/net.yaml")
    assert textwrap.indent(str(error.value), "    ") in GETTING_STARTED
