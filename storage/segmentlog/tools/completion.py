"""Completion of topic names in a shell, from the directory typed before."""

import typer

__all__ = ["complete_topic"]


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics of the paths before the cursor that begin with `incomplete`; only names are read."""
    from segmentlog.errors import SegmentLogError
    from segmentlog.logs.log_directory import open_log_dir

    # If an option still lacks its value, the arguments before it stay unparsed in `args`.
    directory = ctx.params.get("directory")
    paths = [*(ctx.params.get("paths") or ()), *ctx.args, *([directory] if directory else [])]
    found: set[str] = set()
    for path in paths:
        try:
            found.update(open_log_dir(path).topics(internal=True))
        except (SegmentLogError, OSError):  # no completion is better than a message here
            continue
    return sorted(topic for topic in found if topic.startswith(incomplete))
