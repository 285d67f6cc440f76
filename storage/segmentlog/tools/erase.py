"""``segmentlog erase``: every record of some keys is removed, and all else stays."""

import base64
import binascii
import codecs
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

import typer

import segmentlog
from segmentlog.errors import OptionError
from segmentlog.maintain.compaction.erase import (
    CopyKind,
    ErasedPartition,
    EraseOptions,
    RemainingCopy,
)
from segmentlog.store.paths import local_path
from segmentlog.store.readable import read_whole
from segmentlog.times import iso_time
from segmentlog.tools import arguments
from segmentlog.tools.output import Encoding, as_given, counted, escape, json_fields, write_json
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report

_NOT_SEARCHED = (
    "not searched: other replicas, segments in tiered storage, snapshots and backups; records "
    "with other keys\n"
)

_FREED = (
    "the next erase, compact or retain after that time removes a .deleted file; --purge removes "
    "it at once\n"
)

#: What the copies are, and what removes them.
_ABOUT = {
    CopyKind.UNFINISHED: "left by an interrupted command; erase without --dry-run removes it",
    CopyKind.BROKEN: "cut off by a recovery; nothing removes it: remove the file",
    CopyKind.FUTURE_REPLICA: (
        "a broker that starts completes this copy, and then serves it as the log; remove the "
        "directory first, and move the replica again"
    ),
    CopyKind.DELETED_PARTITION: "a starting broker removes the directory, or remove it yourself",
    CopyKind.STRAY_PARTITION: "moved aside by a broker; nothing removes it: remove the directory",
    CopyKind.STAGED: "a write job commits these rows, or a later job removes the file",
    CopyKind.LINK: "a broker follows the link; put the directory or the file itself here",
    CopyKind.OBJECTS: (
        "segmentlog sweep removes them once no read needs them; versions and object locks of the "
        "store may keep them"
    ),
    CopyKind.TIER: "segmentlog never changes a tier; segmentlog grep --remote-storage searches it",
}


@arguments.command(
    "segmentlog erase /data/logs --key customer-07 --dry-run",
    "segmentlog erase /data/logs --key customer-07 --topic orders --purge --yes",
    "segmentlog erase /data/logs --key 0000002a --keys hex",
    "segmentlog erase /data/logs --key-file forgotten.txt --json",
)
@arguments.flags(EraseOptions, "dry_run", "metadata", "server_properties", "purge")
def erase(
    directory: arguments.Directory,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="A key to erase; may be repeated.")
    ] = None,
    key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with a key on each line.")
    ] = None,
    keys: Annotated[
        Encoding, typer.Option(help="The encoding of the given keys.")
    ] = Encoding.TEXT,
    topic: arguments.Topics = None,
    partition: arguments.Partitions = None,
    *,
    given: dict[str, Any],
    yes: arguments.Yes = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Remove every record of the given keys, such as those of a person who asks for it.

    All other records keep their offsets. Without --topic, all topics except brokers' internal
    topics are read. The same command on each replica of a log leaves the same batches. Nothing may
    be running on the directory; a log in an object store may be in use. Only keys are compared:
    data of the same person in records with other keys stays, and so do copies elsewhere, such as
    tiered storage, snapshots and backups.
    """
    wanted = [_bytes_of(each, keys) for each in [*(key or ()), *_lines(key_file, keys)]]
    if not wanted:
        raise OptionError("key", "", "give at least one key, or a --key-file with keys")
    dry_run = given.pop("dry_run")
    erasing = partial(segmentlog.erase, directory, wanted, topic or (), partition or (), **given)
    write, ask = sys.stdout.write, None if dry_run else arguments.asking(yes=yes)
    report = Report(_erased, partial(_erased_row, directory=directory), as_json=as_json)
    if ask:
        planned = erasing(dry_run=True)
        if not as_json:
            report.show_all(planned)
        if any(each.records for each in planned):
            ask(f"erase {_size(planned)}?")
    with progress("erase", None, is_bytes=False) as bar:
        found = erasing(dry_run=dry_run, on_log=bar.begin)
    copies = [copy for each in found for copy in each.remaining]
    report.show_all(found)
    if as_json:
        changed = [each for each in found if each.records]
        totals = {"partitions": len(changed), "records": sum(each.records for each in changed)}
        write_json({**totals, "remaining": len(copies), "dryRun": dry_run})
        return
    write(f"{'would erase' if dry_run else 'erased'} {_size(found)}\n")
    for each in found:
        for copy in each.remaining:
            _write_copy(each, _shown(copy, directory))
    if any(copy.kind is CopyKind.DELETED for copy in copies):
        write(_FREED)
    write(_NOT_SEARCHED)


def _lines(path: str | None, encoding: Encoding) -> list[str]:
    """The lines of a file that are not empty.

    Raises `OptionError` if the file is too large, or something else than a plain file; if keys as
    text have the line ends or the byte order mark of Windows, which would be part of the keys; if
    a line of other keys is blank, which would be the empty key.
    """
    if path is None:
        return []

    def refusal(reason: str) -> OptionError:
        return OptionError("key_file", path, f"the file {reason}")

    data = read_whole(local_path(path), refusal, follow=True)
    if encoding is not Encoding.TEXT:
        for i, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else (), 1):
            if not line.strip():
                raise refusal(f"is blank in line {i}: remove this line, or give --key '' for it")
    lines = [line for line in data.split(b"\n") if line]
    if encoding is Encoding.TEXT:
        for i, line in enumerate(lines, 1):
            if line.endswith(b"\r"):
                reason = f"has a carriage return at the end of key {i}, which would be part of it"
                raise refusal(f"{reason}: end lines with a line feed, or give keys in hex")
        if data.startswith(codecs.BOM_UTF8):
            reason = "begins with a byte order mark, which would be part of the first key"
            raise refusal(f"{reason}: remove it, or give keys in hex")
    return [os.fsdecode(line) for line in lines]


def _bytes_of(text: str, encoding: Encoding) -> bytes:
    """The bytes of a key."""
    if encoding is not Encoding.TEXT and text and not text.strip():
        raise OptionError("key", text, "it is blank; the empty key is given as --key ''")
    try:
        match encoding:
            case Encoding.TEXT:
                return os.fsencode(text)
            case Encoding.HEX:
                return bytes.fromhex(text)
            case Encoding.BASE64:
                return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise OptionError("key", text, f"give the key in {encoding}") from None


def _size(found: Sequence[ErasedPartition]) -> str:
    """``3 records of 2 partitions``."""
    records = counted(records=sum(each.records for each in found))
    return f"{records} of {counted(partitions=sum(each.records > 0 for each in found))}"


def _erased(done: ErasedPartition) -> Iterator[str]:
    if not done.records:
        return
    where = f"{escape(done.topic)}-{done.partition}"
    size = counted(records=done.records, batches=done.batches)
    offsets = f"offsets {done.first_offset} to {done.last_offset}"
    rewritten = counted(segments=len(done.segments), bytes=done.bytes_before)
    if done.bytes_after >= 0:
        rewritten += f" became {counted(bytes=done.bytes_after)}"
    yield f"{where}: {size}, {offsets}; {rewritten}"


def _erased_row(done: ErasedPartition, directory: str) -> dict[str, object]:
    remaining = [json_fields(_shown(copy, directory)) for copy in done.remaining]
    return json_fields(done) | {"remaining": remaining}


def _shown(copy: RemainingCopy, directory: str) -> RemainingCopy:
    """The copy with its path as given; a copy in a tier has none."""
    return copy._replace(path=as_given(copy.path, [directory])) if copy.path else copy


def _write_copy(each: ErasedPartition, copy: RemainingCopy) -> None:
    """The line of a copy that still has these records, or may have some."""
    where = escape(copy.path or (f"{each.topic}-{each.partition}" if each.topic else "all topics"))
    facts = [] if copy.records < 0 else [f"{counted(records=copy.records)} with these keys"]
    facts += [escape(copy.reason)] if copy.reason else []
    if copy.kind is CopyKind.DELETED:
        facts.append(f"it is to be removed after {iso_time(copy.removed_after_ms)}")
    else:
        facts.append(_ABOUT[copy.kind])
    sys.stdout.write(f"still there: {where}: {'; '.join(facts)}\n")
