"""The segments of a partition directory, from one look at its names and sizes.

Files with a state in their names are taken as a starting broker takes them (``LogLoader``):
``.deleted`` and ``.cleaned`` files are not part of the log.  ``.swap`` files are: compaction has
finished them, and they replace every segment in the range of offsets that they cover.  They do not
if a ``.cleaned`` file with the same or a lower offset shows that the swap had not begun.

A crash between two removals may leave index files whose segment is gone.  They hold nothing that
the log does not hold, and they do harm: a segment that begins at their offset cannot be made, and
a broker would take a ``.txnindex`` for that segment's own.  A starting broker removes them
(``LogLoader.loadSegmentFiles``).
"""

import contextlib
import errno
import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, overload

from segmentlog.errors import LogDirectoryError
from segmentlog.format.kernels import layout
from segmentlog.format.names import (
    INDEXES,
    LOG_AND_ALL_INDEXES,
    FileKind,
    FileState,
    parse_segment_file,
)
from segmentlog.format.records.header import BatchHeader, parse_header
from segmentlog.model import LogPaths
from segmentlog.store.durable import remove_file, sync_directory
from segmentlog.store.fingerprint import Evidence, Fingerprint, fingerprint, still_proven
from segmentlog.store.readable import (
    FileType,
    ReadableFile,
    is_directory,
    is_file,
    is_url,
    list_entries,
    list_names,
    measure,
    open_file,
    status_of,
)
from segmentlog.store.system_errors import is_gone

logger = logging.getLogger(__name__)


#: Names that the system returns in one call: on Linux 32 KiB of names, each under 128 bytes.  The
#: system keeps writers out meanwhile, so these names existed together.
_MOST_AT_ONCE = 256

_LARGEST = "09223372036854775807"  #: Java's largest long, in 20 digits

_NOT_LISTED = {errno.ENOTDIR, errno.EACCES, errno.EPERM}

_ATTEMPTS = 10  # a broker rarely renames and deletes more often than this


class SegmentFiles(NamedTuple):
    """One ``.log`` file as it was listed; `is_swap` when its name ends in ``.swap``.

    `inode` shows whether another file has taken its place; 0 if that does not matter.
    """

    base_offset: int
    path: str
    size: int
    is_swap: bool = False
    inode: int = 0

    def is_still_there(self) -> bool:
        """Whether the listed file is still there, and is no shorter."""
        try:
            found = status_of(self.path, follow=True)
        except OSError as error:
            if is_gone(error):
                return False
            raise
        return found.size >= self.size and self.inode in (0, found.inode)


#: Why a read that ends before records for which compaction has removed others cannot go on: it
#: would find neither of them.
COMPACTED_BEYOND = "it was compacted together with records that were written later"


class ListedFiles(Sequence[SegmentFiles]):
    """The ``.log`` files of a listing, in the order of their base offsets."""

    __slots__ = ("inodes", "paths", "sizes")

    def __init__(self, directory: str, files: Iterable[SegmentFiles] = ()) -> None:
        self.paths = LogPaths(directory)
        self.sizes = array("q")
        self.inodes = array("Q")
        for each in files:
            self.paths.append(each.base_offset, each.path)
            self.sizes.append(each.size)
            self.inodes.append(each.inode)

    @classmethod
    def of_columns(
        cls, directory: str, base_offsets: Iterable[int], sizes: list[int], inodes: list[int]
    ) -> "ListedFiles":
        """Files with the names that a broker gives to live segments."""
        found = cls(directory)
        found.paths.base_offsets.extend(base_offsets)
        found.sizes.extend(sizes)
        found.inodes.extend(inodes)
        return found

    def part(self, begin: int, end: int) -> "ListedFiles":
        """The files ``[begin, end)``."""
        found = ListedFiles("")
        found.paths = self.paths.part(begin, end)
        found.sizes, found.inodes = self.sizes[begin:end], self.inodes[begin:end]
        return found

    def index_of(self, offset: int) -> int:
        """Number of the last segment that does not begin after `offset`; 0 if all do."""
        return max(bisect_right(self.paths.base_offsets, offset) - 1, 0)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, i: int) -> SegmentFiles: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[SegmentFiles, ...]: ...
    def __getitem__(self, i: int | slice) -> SegmentFiles | tuple[SegmentFiles, ...]:
        if isinstance(i, slice):
            return tuple(self[each] for each in range(*i.indices(len(self))))
        path = self.paths[i]
        is_swap = path.endswith(".swap")
        return SegmentFiles(
            self.paths.base_offsets[i], path, self.sizes[i], is_swap, self.inodes[i]
        )

    def __iter__(self) -> Iterator[SegmentFiles]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ListedFiles):
            return NotImplemented
        return (self.paths, self.sizes, self.inodes) == (other.paths, other.sizes, other.inodes)

    __hash__ = None  # type: ignore[assignment]  # nobody needs it

    def __repr__(self) -> str:
        return repr(tuple(self))


def list_segments(partition_path: str, seen: Fingerprint | None = None) -> ListedFiles:
    """Segments in the order of their base offsets; none is not an error.

    Sizes are read once all names are known.  A segment that has a successor is no longer written
    to.  If a segment is measured before its successor is listed, its end may be missed: rows from
    the middle of a log were left out beside a writer that rolled small segments.

    `seen`: a look at the directory just before.

    Raises `LogDirectoryError` if the directory cannot be listed.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            names = _names(partition_path, seen if attempt == 1 else None)
        except OSError as error:
            if not is_gone(error) and error.errno not in _NOT_LISTED:
                raise
            reason = f"cannot be listed: {error.strerror}"
            raise LogDirectoryError(partition_path, reason) from error
        try:
            return _measure(partition_path, names, passes_over_gone=attempt >= _ATTEMPTS)
        except OSError as error:  # renamed or deleted meanwhile: it may have another name now
            if not is_gone(error):
                raise


class Listing(NamedTuple):
    """The segments of a partition that are part of its log."""

    files: ListedFiles
    is_clean: bool = False  # only a commit can write to them: the directory was cleanly stopped
    #: the log end at the moment with which the listing was compared, if a commit has written to
    #: the log since; None if the files show the end
    end_offset: int | None = None
    evidence: Evidence = ()  # of the directory and of the active segment; none at a URL

    def still_holds(self) -> bool:
        """Whether the log is proven to be as it was listed; without proof, it may still be so."""
        # Segments are rolled, put aside and compacted by making and renaming files, which changes
        # the time of the directory. Records are appended to the active segment, which changes the
        # time of that file. Nothing else changes the end of a log.
        return still_proven(self.evidence)


def list_now(path: str, *, is_clean: bool = False, before: Listing | None = None) -> Listing:
    """The segments at `path` as they are now, with continued evidence; or `LogDirectoryError`."""
    known = dict(before.evidence) if before else {}
    seen = [] if is_url(path) else [(path, fingerprint(path, known.get(path)))]
    files = list_segments(path, seen[0][1] if seen else None)
    return Listing(files, is_clean, evidence=_with_active(seen, files, known))


def left_out(path: str) -> Iterator[tuple[str, int, str]]:
    """Files that a broker takes for segments, and readers do not: path, base offset, and why."""
    for name, kind in sorted(each for each in list_entries(path) if each[0].endswith(".log")):
        file, head = os.path.join(path, name), name.removesuffix(".log")
        if not (head.isascii() and head.isdecimal()):
            continue
        if kind is FileType.LINK:
            yield (
                file,
                int(head),
                (
                    "is a symbolic link: replace the link by its target"
                    if is_file(file)
                    else "is a symbolic link, and its target is no file: put the file in its place"
                ),
            )
        elif kind is FileType.FILE and parse_segment_file(name) is None:
            yield file, int(head), "has no name of 20 digits: move it out of the directory"


def not_opened(path: str) -> Iterator[tuple[str, int, str]]:
    """Files that a broker cannot open: path, base offset, and why.

    They are indexes; or a segment that is no file, if there is no other: the broker begins a log.
    """
    entries = sorted(list_entries(path))
    logs = {name[:20] for name, _ in entries if name[20:] == ".log"}
    is_begun = any(is_file(os.path.join(path, f"{each}.log")) for each in logs)
    for name, kind in entries:
        parsed = parse_segment_file(name) if kind is not FileType.FILE else None
        if parsed is None or parsed.state != FileState.LIVE or name[:20] not in logs:
            continue
        if parsed.kind not in (INDEXES if is_begun else LOG_AND_ALL_INDEXES):
            continue
        file = os.path.join(path, name)
        remedy = "remove it: segmentlog reindex then builds the file again from the log"
        if parsed.kind == FileKind.LOG:
            remedy = "put the segment in its place"
        if is_directory(file):
            yield file, parsed.offset, f"is a directory; {remedy}"
        # A broker makes the file at the end of a link, but no directory.
        elif parsed.kind != FileKind.TRANSACTION_INDEX and not is_directory(
            os.path.dirname(target := os.path.realpath(file))
        ):
            why = f"is a symbolic link to {target}, whose directory is not there"
            yield file, parsed.offset, f"{why}; {remedy}"


def list_one_file(path: str, listing: Listing) -> Listing:
    """One ``.log`` file as a log, from the listing of its directory, which may leave it out."""
    found = [file for file in listing.files if file.path == path]
    files = ListedFiles(os.path.dirname(path), found or [lone_segment(path)])
    return Listing(files, evidence=_with_active(listing.evidence[:1], files, {}))


def _with_active(
    evidence: Evidence, files: ListedFiles, known: Mapping[str, Fingerprint]
) -> Evidence:
    """Evidence of a directory and its active segment; none if that was written to meanwhile."""
    if not evidence or not files:
        return evidence
    listed = files[-1]
    active = fingerprint(listed.path, known.get(listed.path))
    if active.stamp is None or active.stamp[:2] != (listed.inode, listed.size):
        return ()
    return [*evidence, (listed.path, active)]


def _measure(partition_path: str, names: Sequence[str], *, passes_over_gone: bool) -> ListedFiles:
    if passes_over_gone:
        names = [name for name in names if _is_there(partition_path, name)]
    logs = _usual(names)
    is_usual = len(logs) == len(names)
    cleaned = [] if is_usual else _add_unusual(logs, names)
    found = measure(partition_path, logs)
    if is_usual and not found.types and not found.is_remembered:
        return ListedFiles.of_columns(partition_path, logs.values(), found.sizes, found.inodes)
    paths = [f"{partition_path}/{name}" for name in logs]
    are_swaps = [name.endswith(".swap") for name in logs]
    files = [*map(SegmentFiles, logs.values(), paths, found.sizes, are_swaps, found.inodes)]
    if found.types:
        for i, kind in found.types.items():
            logger.warning(
                "%s is %s and is left out, with its records; a broker %s",
                paths[i],
                *(
                    ("a symbolic link", "follows it: replace the link by its target")
                    if kind is FileType.LINK
                    else ("not a file", "leaves it out, too: put the file in its place")
                ),
            )
        files = [each for i, each in enumerate(files) if i not in found.types]
    if found.is_remembered:
        files = [*map(_asked, files)]
    return ListedFiles(partition_path, files if is_usual else _in_place(files, cleaned))


def _usual(names: Sequence[str]) -> dict[str, int]:
    """Base offsets of the files whose names have the form that a broker gives to a live one."""
    # All are looked at together, because `parse_segment_file` takes ten times as long. The names
    # are sorted.
    digits = [name[:20] for name in names if name[20:] == ".log"]
    joined = "".join(digits)
    if not (joined.isascii() and joined.isdecimal() and digits[-1] <= _LARGEST):
        return {}
    if len(digits) < len(names):
        names = [f"{each}.log" for each in digits]
    return dict(zip(names, map(int, digits), strict=True))


def _add_unusual(logs: dict[str, int], names: Sequence[str]) -> list[int]:
    """Add the other ``.log`` files that may be part of the log; offsets of ``.cleaned`` files."""
    cleaned: list[int] = []
    for name in names:
        parsed = None if name in logs else parse_segment_file(name)
        if parsed is None or parsed.state == FileState.DELETED:
            continue
        if parsed.state == FileState.CLEANED:
            cleaned.append(parsed.offset)
        elif parsed.kind == FileKind.LOG:
            logs[name] = parsed.offset
    return cleaned


def _in_place(files: Iterable[SegmentFiles], cleaned: list[int]) -> list[SegmentFiles]:
    """Live and swap files as one log, in the order of their base offsets."""
    live: dict[int, SegmentFiles] = {}
    swaps: dict[int, SegmentFiles] = {}
    for each in files:
        (swaps if each.is_swap else live)[each.base_offset] = each
    # Finished swap files take the place of the segments that they replace.
    first_cleaned = min(cleaned, default=2**63)
    finished = {offset: swap for offset, swap in swaps.items() if offset < first_cleaned}
    if finished:
        replaced = replaced_by([*finished.values()], live.values())
        live = {offset: each for offset, each in live.items() if offset not in replaced} | finished
    return [live[base_offset] for base_offset in sorted(live)]


def _is_there(partition_path: str, name: str) -> bool:
    """Whether a file is there: for a directory from which files go faster than they are listed."""
    try:
        status_of(f"{partition_path}/{name}")
    except OSError as error:
        if is_gone(error):
            return False
        raise
    return True


def _names(partition_path: str, seen: Fingerprint | None = None) -> list[str]:
    """Names of files that may matter, without a gap."""
    # While a long directory is listed, a new file may be missed although a later one is found, and
    # a renamed file may be found under neither name. So a long directory is listed until two
    # listings agree. The second listing may have more names at its end: files are made in the
    # order of their offsets, and these files were made after the first listing. A directory that
    # has not changed since the clock of its file system last moved on is listed once: its time
    # shows that nothing was made, renamed or removed meanwhile.
    if seen is None and not is_url(partition_path):
        seen = fingerprint(partition_path)
    names = list_names(partition_path)
    if len(names) <= _MOST_AT_ONCE:
        return _of_logs(names)
    if seen is not None and seen.is_settled and fingerprint(partition_path, seen) is seen:
        return _of_logs(names)
    found = _of_logs(names)
    for _ in range(_ATTEMPTS):
        again = _of_logs(list_names(partition_path))
        if found == again[: len(found)]:
            return found
        found = again
    return found


def _of_logs(names: Iterable[str]) -> list[str]:
    """Names that may be of ``.log`` files or of compaction's, sorted by their offsets."""
    found = sorted([name for name in names if ".log" in name or ".cleaned" in name])
    if found and found[0] >= "0" and found[-1] < ":":  # so all of them begin with digits
        return found
    return [name for name in found if name[0].isdecimal()]


def lone_segment(path: str) -> SegmentFiles:
    """A ``.log`` file that no listing has: renamed, or copied; its name begins with an offset."""
    digits = os.path.basename(path).partition(".")[0]
    if not digits.isdecimal() or int(digits) > int(_LARGEST):
        reason = "is not named by its base offset, as 00000000000000000000.log"
        raise LogDirectoryError(path, reason)
    found = status_of(path, follow=True)
    return SegmentFiles(int(digits), path, found.size, inode=found.inode)


def _asked(remembered: SegmentFiles) -> SegmentFiles:
    """The file according to the server of a network file system: a client remembers sizes."""
    # The client asks when the file is opened. Without this, a segment that had been the active one
    # at an earlier look was read only to its earlier end, and later records were left out. Without
    # a server, opening costs a microsecond or two a segment.
    try:
        with open_file(remembered.path, follow=False) as file:
            found = file.status()
    except PermissionError:  # the read of the file reports it
        return remembered
    return remembered._replace(size=found.size, inode=found.inode)


def replaced_by(swaps: Sequence[SegmentFiles], live: Iterable[SegmentFiles]) -> range:
    """Base offsets of the live segments in whose place finished swap files stand."""
    # After a merge, the last batch of a swap file may lie in a later segment's range.
    others = sorted(live, key=attrgetter("base_offset"))
    after = 0
    for swap in swaps:
        with contextlib.suppress(FileNotFoundError):  # put in its place since it was listed
            after = max(after, reach(swap, others))
    return range(min((each.base_offset for each in swaps), default=0), after)


def indexes_without_log(path: str) -> list[tuple[int, str]]:
    """Base offset and path of each index file whose segment is gone, in their order."""
    return _indexes_without_log(path, list_names(path))


def orphans(path: str) -> list[tuple[int, str]]:
    """`indexes_without_log`, and each entry that has the name of a segment and is no file."""
    entries = list_entries(path)
    found = _indexes_without_log(path, [name for name, _ in entries])
    for name, kind in entries:
        parsed = parse_segment_file(name) if kind is not FileType.FILE else None
        if parsed and parsed.kind == FileKind.LOG and parsed.state == FileState.LIVE:
            found.append((parsed.offset, os.path.join(path, name)))
    return found


def _indexes_without_log(path: str, names: Sequence[str]) -> list[tuple[int, str]]:
    # A ``.log.swap`` file counts as a log: compaction puts the indexes in their place first.
    logs = {name[:20] for name in names if name[20:] in {".log", ".log.swap"}}
    found = []
    for name in sorted(name for name in names if name[:20] not in logs):
        parsed = parse_segment_file(name)  # which would take long for all names
        if parsed and parsed.kind in INDEXES and parsed.state == FileState.LIVE:
            found.append((parsed.offset, os.path.join(path, name)))
    return found


def remove_indexes_without_log(path: str) -> int:
    """Remove index files whose segment is gone, durably; return how many there were."""
    found = indexes_without_log(path)
    for _, each in found:
        remove_file(each)
    if found:  # a ``.txnindex`` that comes back after a power cut would be the next segment's
        sync_directory(path)
    return len(found)


# Compaction merges segments and then removes them.  A crash between these steps, or a copy that
# was taken meanwhile, leaves both.  So a batch that reaches into the next segment is either such a
# copy, or it has a wrong base offset, which no checksum covers.  The next segment shows which.


def reach(file: SegmentFiles, others: Sequence[SegmentFiles]) -> int:
    """Offset after the last batch of a file whose base offset is right, by its headers alone.

    The batch that follows shows that a base offset is too high.  So only the last batch is judged:
    if it is the only one that reaches into another segment, of the sorted `others`, that segment
    must hold it, too.
    """

    def place(offset: int) -> int:
        return bisect_right(others, offset, key=attrgetter("base_offset"))

    before, last = file.base_offset, None
    with open_file(file.path) as opened:
        for header in _headers(opened):
            before = before if last is None else last.last_offset + 1
            last = header
    if last is None:
        return before
    at = place(last.last_offset)
    if at > place(max(before - 1, file.base_offset)) and not _holds(others[at - 1].path, last):
        return before
    return last.last_offset + 1


def _holds(path: str, merged: BatchHeader) -> bool:
    """Whether a file holds the batch `merged`, or the batch that it was made of."""
    try:
        with open_file(path) as file:
            originals = (each for each in _headers(file) if each.last_offset >= merged.last_offset)
            original = next(originals, None)
            return original is not None and _is_made_of(merged, original)
    except FileNotFoundError:  # compaction has removed the file since
        return True


def _is_made_of(merged: BatchHeader, original: BatchHeader) -> bool:
    """Whether compaction can have made one batch of the other."""
    # A batch with a wrong base offset may claim the offsets of a whole batch by chance; then it
    # has the same codec, and no fewer records.
    if (merged.base_offset, merged.last_offset) != (original.base_offset, original.last_offset):
        return False
    if merged.crc == original.crc:
        return True
    has_changed = merged.codec != original.codec or merged.delete_horizon_ms is not None
    return merged.magic == layout.MAGIC and (
        has_changed or merged.records_count < original.records_count
    )


def _headers(file: ReadableFile) -> Iterator[BatchHeader]:
    """Headers up to the first that cannot be true."""
    position, size = 0, file.status().size
    while True:
        head = file.read(position, layout.HEADER_BYTES)
        if len(head) < layout.SMALLEST_BATCH_BYTES:
            return
        header = parse_header(head.ljust(layout.HEADER_BYTES, b"\0"))
        position += header.size_in_bytes
        if header.batch_length < layout.MIN_LEGACY_LENGTH or position > size:
            return
        yield header
