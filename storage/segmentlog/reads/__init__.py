"""From a range of offsets to Arrow: plan, look up, scan.

The names below are the door for a caller whose tasks read in other processes, such as a connector:
a `segmentlog.model.LogSlice` travels to a task, which scans it.
"""

from typing import TYPE_CHECKING

from segmentlog.reads.collector import without_collector

if TYPE_CHECKING:
    from segmentlog.reads.scan import scan_slice
    from segmentlog.records.text import TextColumns

__all__ = ["TextColumns", "scan_slice", "without_collector"]


def __getattr__(name: str) -> object:
    """Names that load the kernels and Arrow, when first asked for."""
    if name == "scan_slice":
        from segmentlog.reads.scan import scan_slice

        return scan_slice
    if name == "TextColumns":
        from segmentlog.records.text import TextColumns

        return TextColumns
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
