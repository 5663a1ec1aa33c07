"""What the package `etbuild` exports is a promise: this test fails when it changes."""

from __future__ import annotations

import inspect
import subprocess
import sys

import etbuild


def test_the_interface_has_these_names() -> None:
    assert etbuild.__all__ == ("Built", "Model", "Page", "Program", "build", "load", "open_program")
    members = {
        name: sorted(each for each in vars(getattr(etbuild, name)) if not each.startswith("_"))
        for name in ("Built", "Model", "Page", "Program")
    }
    assert members == {
        "Built": ["index", "metrics", "program", "report"],
        "Model": ["build", "example_inputs", "exported_program", "methods", "name", "plan"],
        "Page": ["write"],
        "Program": ["method", "methods", "page", "reset", "signature"],
    }
    assert list(inspect.signature(etbuild.Built).parameters)[:3] == ["directory", "key", "artifacts"]
    assert list(inspect.signature(etbuild.load).parameters) == ["manifest", "variant", "parameters", "roots", "data"]


def test_importing_and_loading_need_no_torch() -> None:
    code = (
        "import sys, etbuild\n"
        "model = etbuild.load('examples/mlp/model.yaml')\n"
        "assert model.plan()['name'] == model.name == 'mlp'\n"
        "assert not {'torch', 'executorch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
