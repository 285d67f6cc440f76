"""What is in the topics of a log directory: figures, sketches, and what one would change.

The names below are the door for a caller that analyzes in several processes, such as a connector:
one process plans and makes tasks, others run them, and the first one makes the report.
"""

from segmentlog.analysis.analyze import (
    AnalysisPlan,
    AnalysisTask,
    plan_analysis,
    report_of_tasks,
    run_task,
    tasks_of,
)
from segmentlog.analysis.report import Analysis

__all__ = [
    "Analysis",
    "AnalysisPlan",
    "AnalysisTask",
    "plan_analysis",
    "report_of_tasks",
    "run_task",
    "tasks_of",
]
