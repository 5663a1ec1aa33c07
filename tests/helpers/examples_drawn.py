"""How many examples a property test draws: few in CI, more in a campaign.

HYPOTHESIS_EXAMPLES=5000 python -m pytest tests/unit/test_alignment.py
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings


def examples(usual: int) -> settings:
    """Settings with a number of examples, without a limit on time, and without files that are kept.

    In CI the examples are the same each time; a campaign draws others in each run.
    """
    campaign = os.environ.get("HYPOTHESIS_EXAMPLES")
    return settings(
        max_examples=int(campaign or usual),
        derandomize=campaign is None,
        deadline=None,
        database=None,
        # Shrinking lowers a model hundreds of times: the example that fails is small enough to read.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
