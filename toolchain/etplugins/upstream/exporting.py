"""What to work around when methods are exported and read: see `etbuild.workarounds.OfExport`."""

from etplugins.upstream.core_operators import make_lowerable
from etplugins.upstream.derived_dims import forget_ranges as change_loaded
from etplugins.upstream.line_traces import recorded as around

__all__ = ["around", "change_loaded", "make_lowerable"]
