"""A table proved against the log that it was made from: what is missing, repeated or wrong.

The names below are the door for a caller that audits in several processes, such as a connector:
one process plans, others run the methods of `AuditWork` on their rows, and the first one merges.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported

if TYPE_CHECKING:
    from segmentlog.audits.audit import (
        FINDINGS,
        AuditedTableOptions,
        AuditResult,
        check_findings,
        plan_audit,
    )
    from segmentlog.audits.parts import AuditWork, MergedAudit, merge
    from segmentlog.audits.record_sums import compared_columns
    from segmentlog.audits.table_rows import ColumnNames

__all__ = [
    "FINDINGS",
    "AuditResult",
    "AuditWork",
    "AuditedTableOptions",
    "ColumnNames",
    "MergedAudit",
    "check_findings",
    "compared_columns",
    "merge",
    "plan_audit",
]

__getattr__, __dir__ = exported(
    __name__,
    {
        "audits.audit": "AuditResult FINDINGS AuditedTableOptions check_findings plan_audit",
        "audits.parts": "AuditWork MergedAudit merge",
        "audits.record_sums": "compared_columns",
        "audits.table_rows": "ColumnNames",
    },
)
