"""Settings for the number of examples that a property test draws: few in CI, more in a campaign.

HYPOTHESIS_EXAMPLES=5000 python -m pytest tests/unit/test_alignment.py
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings


def examples(usual: int) -> settings:
    """Returns settings with a number of examples, without a time limit, and without a database of examples.

    In CI the examples are always the same. A campaign draws different ones in each run.
    """
    campaign = os.environ.get("HYPOTHESIS_EXAMPLES")
    return settings(
        max_examples=int(campaign or usual),
        derandomize=campaign is None,
        deadline=None,
        database=None,
        # No shrinking, which lowers a model hundreds of times: a failing example is small enough to read.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
