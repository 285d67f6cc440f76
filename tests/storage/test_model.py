"""Columns of files are sequences of the files that were added."""

import pickle

import pytest

from segmentlog.log.listing import ListedFiles, SegmentFiles
from segmentlog.model import LogPaths, SliceFile, SliceFiles

USUAL = [SegmentFiles(at, f"/d/t-0/{at:020d}.log", 100 + at, inode=at + 1) for at in (0, 7, 9)]
SWAP = SegmentFiles(20, "/d/t-0/00000000000000000020.log.swap", 5, is_swap=True, inode=2**64 - 1)
FILES = [
    SliceFile("/d/t-0/00000000000000000000.log", 10, 80, 3, 0xFFFFFFFF, 7, 1),
    SliceFile("/elsewhere/00000000000000000007.log", 0, 107, 7, -1, 9, 2),
    SliceFile("/d/t-0/00000000000000000009.log", 0, 109, 9, -1, -1, 0),
]


def sliced() -> SliceFiles:
    """The columns of `FILES`."""
    columns = SliceFiles(LogPaths("/d/t-0"))
    for base_offset, file in zip((0, 7, 9), FILES, strict=True):
        columns.append(base_offset, file)
    return columns


def test_a_listing_has_the_files_that_were_listed() -> None:
    """Names that are no live segment's are kept, in a part of the listing, too."""
    files = [*USUAL, SWAP]
    listed = ListedFiles("/d/t-0", files)

    assert files == [*listed]
    assert SWAP == listed[-1]
    assert tuple(files[1:]) == listed[1:]
    assert [USUAL[2], SWAP] == [*listed.part(2, 4)]
    assert [0, 0, 1, 2, 3] == [listed.index_of(at) for at in (-1, 6, 7, 19, 20)]


@pytest.mark.parametrize(
    "other",
    [
        USUAL[2]._replace(size=1),
        USUAL[2]._replace(inode=9),
        USUAL[2]._replace(path="/d/t-0/9.log.swap"),
    ],
)
def test_listings_with_another_file_differ(other: SegmentFiles) -> None:
    """A name, a size or an inode makes another listing."""
    listed = ListedFiles("/d/t-0", USUAL)

    assert listed == ListedFiles("/d/t-0", USUAL)
    assert listed != ListedFiles("/d/t-0", [*USUAL[:2], other])
    assert listed != ListedFiles("/d/t-0", USUAL[:2])


def test_files_of_a_slice_travel_to_a_task() -> None:
    """A pickled copy has the same files, paths in other directories too."""
    files = sliced()
    copied = pickle.loads(pickle.dumps(files))

    assert FILES == [*copied]
    assert copied == files == tuple(FILES)
    assert hash(copied) == hash(files)
    assert 70 + 107 + 109 == copied.n_bytes()


def test_a_part_of_a_slice_keeps_paths_in_other_directories() -> None:
    """The numbers of files are those in the part."""
    assert FILES[1:] == [*sliced().part(1, 3)]
    assert FILES[1] == sliced().part(1, 3)[-2]


def test_segments_are_added_whole() -> None:
    """Files from a listing lie between those that were added one by one."""
    files, listed = SliceFiles(LogPaths("/d/t-0")), ListedFiles("/d/t-0", [*USUAL, SWAP])
    files.add_whole(listed.paths, listed.sizes, listed.inodes, 1, 4, -1, [9, 20, 25])

    assert [(each.path, each.end, each.next_offset, each.inode) for each in files] == [
        (each.path, each.size, limit, each.inode)
        for each, limit in zip([*USUAL[1:], SWAP], [9, 20, 25], strict=True)
    ]
    assert {(0, -1)} == {(each.start, each.first_crc) for each in files}
