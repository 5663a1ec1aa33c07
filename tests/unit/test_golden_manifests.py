"""Every bad manifest has one golden message. `pytest --update-golden` writes the messages again; review the diff."""

from pathlib import Path

import pytest

from etbuild.errors import InputError
from etbuild.manifest import validate

GOLDEN = Path(__file__).parents[1] / "golden/manifests"
CASES = sorted(GOLDEN.glob("*.yaml"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_bad_manifest_has_its_message(path: Path, update_golden: bool) -> None:
    with pytest.raises(InputError) as error:
        validate.load_each(path, path.name)
    message = f"{error.value}\n"
    expected = path.with_suffix(".expected")
    if update_golden:
        expected.write_text(message, "utf-8")
    assert message == expected.read_text("utf-8")


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_problem_has_a_position_in_the_file(path: Path) -> None:
    with pytest.raises(InputError) as error:
        validate.load_each(path, path.name)
    lines = path.read_bytes().count(b"\n") + 1
    for problem in error.value.problems:
        assert problem.position is not None
        assert problem.position.file == path.name
        assert 1 <= problem.position.line <= lines


def test_each_message_belongs_to_a_manifest() -> None:
    """A message without a manifest would not be tested, and if no manifest were found, nothing would."""
    messages = sorted(path.stem for path in GOLDEN.glob("*.expected"))
    assert messages
    assert messages == [path.stem for path in CASES]
