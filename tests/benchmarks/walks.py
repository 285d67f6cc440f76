"""The modules that one record passes: a commit, a scan, a dataset, a refresh, a compaction.

    python tests/benchmarks/walks.py [--names]

Each walk runs twice, and the second time is counted, so that nothing is loaded on the way.  A
module counts if one of its functions is called in Python; kernels and Arrow are not seen.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyarrow as pa

import segmentlog

_PACKAGE = Path(segmentlog.__file__).parent
_COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "200",
}


def modules_of(walk: Callable[[], object]) -> list[str]:
    """The modules of segmentlog in which `walk` calls functions, in any thread."""
    files = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        walk()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    paths = (Path(each) for each in files)
    inside = (each for each in paths if each.is_relative_to(_PACKAGE))
    return sorted(each.relative_to(_PACKAGE).with_suffix("").as_posix() for each in inside)


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="name the modules")
    names = parser.parse_args().names
    rows = pa.table({"key": [b"%d" % (i % 5) for i in range(10)], "value": [b"value"] * 10})
    with tempfile.TemporaryDirectory() as directory:

        def write() -> None:
            with segmentlog.open_writer(directory, "t", num_partitions=1) as writer:
                writer.append(rows)

        def compact() -> None:
            segmentlog.compact(directory, settings=_COMPACTED, roll=True)

        def write_more() -> None:
            compact()
            write()

        write()
        opened = segmentlog.open_log_dir(directory)
        walks: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "a commit": (write, write),
            "a scan": (lambda: [*segmentlog.open_log_dir(directory).log("t", 0).scan()],) * 2,
            "a dataset": (lambda: segmentlog.dataset(directory).to_table(),) * 2,
            "a refresh that finds nothing new": (opened.refresh, opened.refresh),
            "a compaction": (write_more, compact),
        }
        for name, (first, second) in walks.items():
            first()
            found = modules_of(second)
            print(f"{name}: {len(found)}")
            if names:
                print(*found, sep="\n", end="\n\n")


if __name__ == "__main__":
    main()
