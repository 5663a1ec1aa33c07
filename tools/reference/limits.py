"""Makes the page of upstream's limits from `tests/conformance/upstream_limits.py`."""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.upstream_limits import DEEDS, LIMITS
from tools.reference.markdown import page as markdown_page
from tools.reference.markdown import table

_CODE = "../../toolchain/etbuild/"


def page() -> str:
    """Returns the page."""
    return markdown_page("Limits of ExecuTorch", "tests/conformance/upstream_limits.py", _blocks())


def _blocks() -> Iterator[str]:
    yield (
        "What ExecuTorch 1.5.1 and PyTorch 2.13 cannot do, or do wrongly, and what a build does about it. "
        "`tests/conformance/test_upstream_limits.py` meets each limit without the driver, and fails when upstream has "
        "fixed it. [What could be faster](../upstream.md) has more about some of them."
    )
    yield "\n".join(f"- **{deed}**: {what}" for deed, what in DEEDS.items())
    rows = [
        (
            limit.what,
            limit.deed,
            f"[`{limit.where}`]({_CODE}{limit.where})" if limit.where else "",
            _upstream(limit.upstream),
        )
        for limit in LIMITS
    ]
    yield table(("limit", "what a build does", "where", "upstream"), rows)


def _upstream(reference: str) -> str:
    if reference.startswith("https://"):
        *_, repository, _, number = reference.split("/")
        return f"[{repository}#{number}]({reference})"
    project, _, source = reference.partition(": ")
    return f"{project}, `{source}`"
