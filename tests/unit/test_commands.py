"""The commands of the tests."""

from __future__ import annotations

import pytest

from tests.conftest import EXAMPLES
from tests.helpers import commands


def test_a_worker_without_a_response_in_time_fails_one_test_only() -> None:
    late = commands.worker()
    late.send("validate", "missing.yaml")
    with pytest.raises(AssertionError, match="no response in time"):
        late.receive(0)
    answer = commands.worker().ask("validate", EXAMPLES / "mlp/model.yaml")
    assert answer.exit_code == 0, answer.output
