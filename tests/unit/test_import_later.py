"""Modules that run when something of them is used: `etplugins.accelerate.import_later`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from etplugins.accelerate.import_later import import_later, waiting

FILES = {
    "later_pack/__init__.py": "from later_pack.heavy import Base\nfrom later_pack.light import small\nRAN = 1\n",
    "later_pack/light.py": "def small():\n    return 'small'\n",
    "later_pack/heavy.py": """\
class Base:
    pass


class Problem(Exception):
    pass


def call(number, *, more=0):
    return number + more


TABLE = {'a': 1}
""",
    "later_pack/needed.py": "REGISTERED = True\n",
    "later_user.py": """\
import later_pack.heavy as heavy
import later_pack.needed
from later_pack.heavy import TABLE, Base, Problem, call as renamed
from later_pack.light import small


def of_table(key):
    return TABLE[key] if key in TABLE else len(TABLE)


def is_base(value):
    return isinstance(value, Base)
""",
    "later_derived.py": "from later_pack.heavy import Base\n\n\nclass Derived(Base):\n    pass\n",
}


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that imported from a package whose modules wait, except for two."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with import_later(["later_pack"], ["later_pack.heavy"], ["later_pack.needed"]):
        found = importlib.import_module("later_user")
    assert waiting() == ["later_pack", "later_pack.heavy"]
    yield found
    for name in [name for name in sys.modules if name.startswith("later_")]:
        del sys.modules[name]


def test_a_package_waits_while_its_modules_run(user: ModuleType) -> None:
    assert user.small() == "small"
    assert sys.modules["later_pack.needed"].REGISTERED
    assert len(waiting()) == 2


def test_a_call_runs_the_module_and_its_packages(user: ModuleType) -> None:
    assert user.renamed(2, more=3) == 5
    assert waiting() == []
    heavy = sys.modules["later_pack.heavy"]
    assert (user.TABLE, user.Base, user.Problem, user.renamed) == (heavy.TABLE, heavy.Base, heavy.Problem, heavy.call)
    assert user.renamed is heavy.call
    assert sys.modules["later_pack"].RAN == 1


def test_other_uses_run_it(user: ModuleType) -> None:
    assert not user.is_base(1)
    assert waiting() == []
    assert user.is_base(user.Base())
    assert (user.of_table("a"), user.of_table("b")) == (1, 1)


def test_an_attribute_of_the_module_runs_it(user: ModuleType) -> None:
    assert user.heavy.TABLE == {"a": 1}
    assert waiting() == []


def test_what_comes_after_the_context_gets_no_stand_in(user: ModuleType) -> None:
    derived = importlib.import_module("later_derived")
    assert waiting() == []
    assert derived.Derived.__bases__ == (sys.modules["later_pack.heavy"].Base,)
    with pytest.raises(AttributeError, match="nothing"):
        user.heavy.nothing  # noqa: B018 - it has no such name


def test_a_class_within_the_context_has_the_real_base(user: ModuleType) -> None:
    with import_later([]):
        derived = importlib.import_module("later_derived")
    assert derived.Derived.__bases__ == (user.Base,)
    assert user.Base is sys.modules["later_pack.heavy"].Base


def test_importing_a_module_below_runs_its_package_first(user: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "later_pack/another.py").write_text("import sys\nRAN = sys.modules['later_pack'].__dict__['RAN']\n")
    importlib.invalidate_caches()
    assert importlib.import_module("later_pack.another").RAN == 1


def test_a_module_that_changes_its_class_keeps_it(user: ModuleType, tmp_path: Path) -> None:
    """PyTorch's modules of settings do so, and have no attributes but through that class."""
    (tmp_path / "later_settings.py").write_text(
        "import sys\nfrom types import ModuleType\nclass Settings(ModuleType):\n"
        "    def __getattr__(self, name):\n        return len(name)\nsys.modules[__name__].__class__ = Settings\n"
    )
    importlib.invalidate_caches()
    with import_later([], ["later_settings"]):
        settings = importlib.import_module("later_settings")
        assert settings.size == 4  # a function asks within the context
    assert type(settings).__name__ == "Settings"
    assert len(waiting()) == 2, "nobody has used the others"


def test_a_module_runs_within_a_context_without_its_packages(user: ModuleType) -> None:
    with import_later([]):
        assert user.renamed(1) == 1
    assert waiting() == ["later_pack"]
