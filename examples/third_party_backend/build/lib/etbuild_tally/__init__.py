"""The backend `tally`, as etbuild sees it. Nothing here imports torch: manifests are checked without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etbuild.backends import Backend, Context, Options


def create(options: Options, context: Context) -> Any:
    """The partitioner of one method."""
    from etbuild_tally.lowering import TallyPartitioner

    return TallyPartitioner(options["operators"], context.method if options.get("name_methods") else "")


BACKEND = Backend(
    "tally",
    create,
    separable=True,  # it inherits `preprocess_multimethod`, and shares weights by the key of their content
    options=Path(__file__).with_name("options.schema.json"),
)
