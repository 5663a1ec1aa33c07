"""Tests that transformers asks no hub, and that this stays inside of its import."""

from __future__ import annotations

import os
import subprocess
import sys

_IMPORTED = """
import os
from etplugins.transformers import offline
before = dict(os.environ)
offline.transformers()
from huggingface_hub import constants
print(constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_TELEMETRY, dict(os.environ) == before)
"""


def test_transformers_asks_no_hub_and_the_environment_stays() -> None:
    environment = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "0"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run([sys.executable, "-c", _IMPORTED], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
