"""``segmentlog delete-topic``: a line on the deleted topic, and on clusters that still know it."""

import os
from collections.abc import Callable

from segmentlog.disk.paths import local_path
from segmentlog.disk.readable import exists
from segmentlog.names import META_PROPERTIES_FILE
from segmentlog.tools.arguments import Ask
from segmentlog.tools.text import counted, escape
from segmentlog.upkeep.delete_topic import DeletedTopic, delete_topic

__all__ = ["delete_and_tell"]


def delete_and_tell(
    path: str,
    topic: str,
    write: Callable[[str], object],
    *,
    dry_run: bool = False,
    ask: Ask | None = None,
) -> None:
    """Delete a topic and write its size.

    Parameters
    ----------
    path : the log directory.
    topic : its name.
    write : takes each line.
    dry_run : whether nothing is changed, and the lines only name what would be deleted.
    ask : asks before the topic is deleted.

    Raises
    ------
    SegmentLogError
        See `segmentlog.delete_topic`.
    """
    if ask and not dry_run:
        ask(f"delete topic {escape(topic)}: {_size(delete_topic(path, topic, dry_run=True))}?")
    what = _size(delete_topic(path, topic, dry_run=dry_run))
    does = "would delete" if dry_run else "deleted"
    write(f"{does} topic {escape(topic)}: {what}\n")
    if exists(os.path.join(local_path(path), META_PROPERTIES_FILE)):
        write(
            "a broker whose cluster knows the topic makes it again, empty: "
            f"run kafka-topics.sh --delete --topic {escape(topic)} there\n"
        )


def _size(done: DeletedTopic) -> str:
    return counted(partitions=done.partitions, segments=done.segments, bytes=done.n_bytes)
