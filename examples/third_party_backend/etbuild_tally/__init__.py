"""The backend `tally`, as etbuild sees it. Nothing here imports torch: manifests are checked without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etbuild.backends import Backend, Context, Options


class Tally(Backend):
    name = "tally"
    separable = True  # it inherits `preprocess_multimethod`, and shares weights by the key of their content
    options_schema = Path(__file__).with_name("options.schema.json")
    delegate_id = "TallyBackend"

    def create_partitioner(self, options: Options, context: Context) -> Any:
        from etbuild_tally.lowering import TallyPartitioner

        return TallyPartitioner(options["operators"], context.method if options.get("name_methods") else "")
