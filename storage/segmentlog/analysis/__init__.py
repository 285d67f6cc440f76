"""What is in the topics of a log directory: figures, sketches, and what one would change.

The names below are the door for a caller that analyzes in several processes, such as a connector:
one process plans and makes tasks, others run them, and the first one makes the report.
"""

from typing import TYPE_CHECKING

from segmentlog.exports import exported

if TYPE_CHECKING:
    from segmentlog.analysis.analyze import (
        AnalysisOptions,
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
    "AnalysisOptions",
    "AnalysisPlan",
    "AnalysisTask",
    "plan_analysis",
    "report_of_tasks",
    "run_task",
    "tasks_of",
]

__getattr__, __dir__ = exported(
    __name__,
    {
        "analysis.analyze": (
            "AnalysisOptions AnalysisPlan AnalysisTask plan_analysis report_of_tasks run_task "
            "tasks_of"
        ),
        "analysis.report": "Analysis",
    },
)
