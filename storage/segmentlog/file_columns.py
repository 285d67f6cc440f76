"""Many files of one log as columns, instead of an object for each file.

A directory of a million segments was planned with two tuples, two paths and a dozen numbers for
each segment: 530 MB.  Here a segment takes 24 bytes in a listing and 56 bytes in a slice.  A tuple
is made when a file is asked for.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload


class SliceFile(NamedTuple):
    """The part of one ``.log`` file that a slice reads.

    ``start`` and ``end`` are byte positions, half-open, and both stand between two batches.
    ``first_offset`` and ``first_crc`` are the base offset and stored checksum of the batch at
    ``start``.  If they differ from the file, the file was rewritten since planning.  The header of
    a compressed message of magic 0 or 1 has only its last offset: ``first_offset`` is then the
    least possible offset.
    ``next_offset`` is the base offset of the batch at ``end``, or -1 if it is unknown; no batch
    before ``end`` can reach it.  ``inode`` is the inode of the file, or 0 if it is unknown; if it
    differs, the name belongs to another file, to which ``start`` and ``end`` do not apply.
    """

    path: str
    start: int
    end: int
    first_offset: int
    first_crc: int
    next_offset: int = -1
    inode: int = 0


class LogPaths(Sequence[str]):
    """Paths of ``.log`` files.

    Nearly all of them are named by their base offset and lie in one directory, so that the base
    offset is enough.  The others are kept by their number.
    """

    __slots__ = ("_directory", "_others", "base_offsets")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._others: dict[int, str] = {}
        self.base_offsets = array("q")

    def append(self, base_offset: int, path: str) -> None:
        if path != self._usual(base_offset):
            self._others[len(self.base_offsets)] = path
        self.base_offsets.append(base_offset)

    def extend(self, others: "LogPaths", begin: int, end: int) -> None:
        """Add the files ``[begin, end)`` of others in the same directory."""
        shift = len(self.base_offsets) - begin
        for i in others._others.keys() & range(begin, end) if others._others else ():
            self._others[i + shift] = others._others[i]
        self.base_offsets += others.base_offsets[begin:end]

    def part(self, begin: int, end: int) -> "LogPaths":
        """The files ``[begin, end)``."""
        found = LogPaths(self._directory)
        found.extend(self, begin, end)
        return found

    def _usual(self, base_offset: int) -> str:
        return f"{self._directory}/{base_offset:020d}.log"

    def __len__(self) -> int:
        return len(self.base_offsets)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[each] for each in range(*i.indices(len(self)))]
        base_offset = self.base_offsets[i]
        if not self._others:
            return self._usual(base_offset)
        return self._others.get(i % len(self), "") or self._usual(base_offset)

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogPaths):
            return NotImplemented
        return (self._directory, self.base_offsets, self._others) == (
            other._directory, other.base_offsets, other._others
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self._directory, len(self)))


class SliceFiles(Sequence[SliceFile]):
    """The files of a slice; the columns are those of `SliceFile`."""

    __slots__ = (
        "_ends", "_first_crcs", "_first_offsets", "_inodes", "_next_offsets", "_paths", "_starts",
    )  # fmt: skip

    def __init__(self, paths: LogPaths) -> None:
        self._paths = paths
        self._starts = array("q")
        self._ends = array("q")
        self._first_offsets = array("q")
        self._first_crcs = array("q")
        self._next_offsets = array("q")
        self._inodes = array("Q")

    def append(self, base_offset: int, file: SliceFile) -> None:
        """Add a part of the segment with this base offset."""
        self._paths.append(base_offset, file.path)
        self._starts.append(file.start)
        self._ends.append(file.end)
        self._first_offsets.append(file.first_offset)
        self._first_crcs.append(file.first_crc)
        self._next_offsets.append(file.next_offset)
        self._inodes.append(file.inode)

    def add_whole(
        self, paths: LogPaths, sizes: "array[int]", inodes: "array[int]", begin: int, end: int,
        first_crc: int, next_offsets: Iterable[int],
    ) -> None:  # fmt: skip
        """Add the segments ``[begin, end)`` of a listing, from their first bytes to their last.

        `next_offsets`: an offset for each of them that no batch of it reaches.
        """
        self._paths.extend(paths, begin, end)
        self._starts += array("q", [0]) * (end - begin)
        self._ends += sizes[begin:end]
        self._first_offsets += paths.base_offsets[begin:end]
        self._first_crcs += array("q", [first_crc]) * (end - begin)
        self._next_offsets.extend(next_offsets)
        self._inodes += inodes[begin:end]

    def part(self, begin: int, end: int) -> "SliceFiles":
        found = SliceFiles(self._paths.part(begin, end))
        for name in ("_starts", "_ends", "_first_offsets", "_first_crcs", "_next_offsets",
                     "_inodes"):  # fmt: skip
            setattr(found, name, getattr(self, name)[begin:end])
        return found

    def n_bytes(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def sizes(self) -> Iterator[int]:
        return map(int.__sub__, self._ends, self._starts)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, i: int) -> SliceFile: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[SliceFile, ...]: ...
    def __getitem__(self, i: int | slice) -> SliceFile | tuple[SliceFile, ...]:
        if isinstance(i, slice):
            return tuple(self[each] for each in range(*i.indices(len(self))))
        return SliceFile(
            self._paths[i], self._starts[i], self._ends[i], self._first_offsets[i],
            self._first_crcs[i], self._next_offsets[i], self._inodes[i],
        )  # fmt: skip

    def __iter__(self) -> Iterator[SliceFile]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SliceFiles | tuple):
            return NotImplemented
        return len(self) == len(other) and all(map(SliceFile.__eq__, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
