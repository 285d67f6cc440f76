"""Completion of topic names in a shell, from the directory that is already typed."""

import os

import typer

__all__ = ["complete_topic"]


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics of the paths before the cursor that begin with `incomplete`; names alone are read."""
    from segmentlog.errors import SegmentLogError
    from segmentlog.log.logdir import open_log_dir

    found: set[str] = set()
    for path in ctx.params.get("paths") or ():
        try:
            found.update(open_log_dir(os.fspath(path)).topics(internal=True))
        except (SegmentLogError, OSError):  # nothing to offer is better than a message here
            continue
    return sorted(topic for topic in found if topic.startswith(incomplete))
