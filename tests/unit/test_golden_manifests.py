"""Every bad manifest has one golden message. `pytest --update-golden` writes them anew; read the diff."""

from pathlib import Path

import pytest

from etbuild.errors import InputError
from etbuild.manifest import validate

CASES = sorted((Path(__file__).parent.parent / "golden" / "manifests").glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_bad_manifest_has_its_message(path: Path, update_golden: bool) -> None:
    with pytest.raises(InputError) as error:
        validate.load(path, path.name)
    message = f"{error.value}\n"
    expected = path.with_suffix(".expected")
    if update_golden:
        expected.write_text(message, "utf-8")
    assert message == expected.read_text("utf-8")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_problem_has_a_position_in_the_file(path: Path) -> None:
    with pytest.raises(InputError) as error:
        validate.load(path, path.name)
    lines = path.read_bytes().count(b"\n") + 1
    for problem in error.value.problems:
        assert problem.position is not None
        assert problem.position.file == path.name
        assert 1 <= problem.position.line <= lines


def test_there_are_enough_bad_manifests() -> None:
    assert len(CASES) >= 60
