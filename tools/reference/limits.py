"""Makes the page of upstream's limits from `tests/conformance/upstream_limits.py`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.upstream_limits import DEEDS, LIMITS, NOT_REPORTED, UpstreamLimit
from tests.helpers.patched_packages import UPSTREAM
from tools.reference.markdown import page as markdown_page
from tools.reference.markdown import table

_CODE = "../../toolchain/"


def page() -> str:
    """Returns the page."""
    return markdown_page("Limits of ExecuTorch", "tests/conformance/upstream_limits.py", _blocks())


def _blocks() -> Iterator[str]:
    yield (
        "What ExecuTorch 1.5.1 and PyTorch 2.13 cannot do, or do wrongly, and what a build does about it. "
        "`tests/conformance/test_upstream_limits.py` meets each limit without the driver, and fails when upstream has "
        "fixed it. [What could be faster](../upstream.md) has more about some of them. The last column names an issue "
        "or a pull request about the limit, and a patch of this repository that removes it."
    )
    yield "\n".join(f"- **{deed}**: {what}" for deed, what in DEEDS.items())
    rows = [
        (
            limit.what,
            limit.deed,
            f"[`{limit.where}`]({_CODE}{limit.file})" if limit.where else "",
            _source(limit.source),
            _report(limit),
        )
        for limit in LIMITS
    ]
    yield table(("limit", "what a build does", "where", "upstream", "reported"), rows)


def _source(source: str) -> str:
    project, _, path = source.partition(": ")
    return f"{project}, `{path}`"


def _report(limit: UpstreamLimit) -> str:
    report = limit.report
    if report != NOT_REPORTED:
        *_, repository, _, number = report.split("/")
        report = f"[{repository}#{number}]({limit.report})"
    patch = f"{limit.name}.patch"
    return f"{report}, [patch](../../upstream/{patch})" if (UPSTREAM / patch).exists() else report
