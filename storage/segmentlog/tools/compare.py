"""``segmentlog compare``: two log directories, record by record."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from segmentlog.model import OnCorruptBatch
from segmentlog.reads.log_directory import open_log_dir
from segmentlog.tools.arguments import PROBLEM, READS, OnCorrupt, Topics, command
from segmentlog.tools.progress import progress
from segmentlog.tools.text import escape, to_json
from segmentlog.tools.usage import write_not_in_use

if TYPE_CHECKING:
    from segmentlog.maintain.verification.compare import ComparedPartition


@command(
    READS,
    "segmentlog compare /var/lib/kafka /backup/kafka",
    "segmentlog compare /var/lib/kafka /backup/kafka --topic orders --json",
)
def compare(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A log directory.")],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="Another log directory.")],
    topic: Topics = None,
    on_corrupt_batch: OnCorrupt = OnCorruptBatch.FAIL,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Compare the records of two log directories, such as a copy with its original.

    The command compares records, not files: equal logs may have different segments, batches and
    codecs. With --json, equal digests prove that records are equal, because a digest depends only
    on the records. A partition that cannot be read is named with the reason, and the others are
    compared. The exit status is 0 if all partitions are equal, and 1 if not.
    """
    import segmentlog
    from segmentlog.maintain.verification.compare import Comparison

    with progress("compared", None) as bar:

        def show(found: "ComparedPartition") -> None:
            bar.name(escape(f"{found.topic}-{found.partition}"))
            if as_json:
                row = found._asdict()
                for side in ("left", "right"):
                    row[side] = row[side] and row[side]._asdict()
                bar.write(to_json(row))
            else:
                bar.write(_line(found))

        sides = [open_log_dir(each) for each in (left, right)]
        found = segmentlog.compare(
            *sides, topics=topic or (), on_corrupt_batch=on_corrupt_batch, on_partition=show,
            on_bytes=bar.advance,
        )  # fmt: skip
    for each in sides:
        write_not_in_use(each, topic or ())
    if not found and not as_json:
        sys.stderr.write("segmentlog: neither directory has a partition\n")
    if any(row.comparison != Comparison.EQUAL for row in found):
        raise typer.Exit(PROBLEM)


def _line(found: "ComparedPartition") -> str:
    name = escape(f"{found.topic}-{found.partition}")
    left, right = found.left, found.right
    if found.comparison == "unreadable":
        return f"{name}: unreadable: {escape(found.error or '')}"
    if left is None or right is None:
        there, side = ("left", left) if right is None else ("right", right)
        where = f"; {escape(found.error)}" if found.error else ""
        return f"{name}: only {there}: {side.n_records if side else 0} records{where}"
    ranges = [f"[{each.log_start_offset}, {each.log_end_offset})" for each in (left, right)]
    if found.diverges_at is not None:
        fields = ", ".join(found.differs_in)
        how = f" in {fields}" if fields else ", where only one has a record"
        return f"{name}: differs at offset {found.diverges_at}{how}: {ranges[0]}, {ranges[1]}"
    if found.comparison == "disjoint":
        return f"{name}: nothing in common: {ranges[0]}, {ranges[1]}"
    if ranges[0] == ranges[1]:
        return f"{name}: equal: {left.n_records} records in {ranges[0]}"
    return f"{name}: equal where both have offsets: {ranges[0]}, {ranges[1]}"
