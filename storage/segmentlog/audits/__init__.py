"""A table proved against the log that it was made from: what is missing, repeated or wrong.

The names below are the door for a caller that audits in several processes, such as a connector:
one process plans, others run the methods of `AuditWork` on their rows, and the first one merges.
"""

from typing import TYPE_CHECKING

from segmentlog.arrow_dataset.open_dataset import DatasetOptions
from segmentlog.audits.audit import FINDINGS, AuditResult, check_findings, plan_audit

if TYPE_CHECKING:
    from segmentlog.audits.parts import AuditWork, MergedAudit, merge
    from segmentlog.audits.table_rows import Columns

__all__ = [
    "FINDINGS",
    "AuditResult",
    "AuditWork",
    "Columns",
    "DatasetOptions",
    "MergedAudit",
    "check_findings",
    "merge",
    "plan_audit",
]


def __getattr__(name: str) -> object:
    """The names that load the kernels, when first asked for."""
    if name == "Columns":
        from segmentlog.audits.table_rows import Columns

        return Columns
    if name not in ("AuditWork", "MergedAudit", "merge"):
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from segmentlog.audits import parts

    return getattr(parts, name)
