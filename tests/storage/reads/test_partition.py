"""The files of one log give the same answers wherever they lie, and without the kernels."""

import subprocess
import sys
from pathlib import Path

import pytest

import segmentlog
from segmentlog.format.names import LEADER_EPOCH_CHECKPOINT
from segmentlog.model import SliceFile
from segmentlog.reads.listed import FileChangedError, Partition
from segmentlog.reads.scan import open_planned

ORDERS = Path(__file__).parents[3] / "examples" / "data" / "orders-0"


def test_a_partition_answers_for_its_directory() -> None:
    """The files are those of the log, and the topic id is that of ``partition.metadata``."""
    partition = Partition(str(ORDERS))
    log = segmentlog.open_log_dir(ORDERS.parent).log("orders", 0)

    assert [each.path for each in log.segments] == [each.path for each in partition.files()]
    assert [each.base_offset for each in log.segments] == [
        each.base_offset for each in partition.segments()
    ]
    assert partition.segments()[-1].is_active
    assert partition.path == log.partition.path == Partition.of_file(log.segments[0].path).path


def test_a_slice_leads_to_the_partition_it_was_cut_from() -> None:
    """A task has only the slice. The slice also leads back to a log that is a single file."""
    log = segmentlog.open_log_dir(ORDERS.parent).log("orders", 0)
    (whole,) = log.slices(0, log.end_offset())

    assert str(ORDERS) == Partition.of_slice(whole).path
    alone = segmentlog.open_log_dir(whole.files[0].path).log("orders", 0)
    assert str(ORDERS) == alone.partition.path


def test_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """A file that was put aside is found under its new name.

    Another file under the old name is refused.
    """
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"planned")
    planned = SliceFile(str(path), 0, 7, 0, -1, inode=path.stat().st_ino)
    path.rename(f"{path}.deleted")
    path.write_bytes(b"another")
    with open_planned(planned) as file:
        assert b"planned" == file.read(0, 7)

    Path(f"{path}.deleted").unlink()
    with pytest.raises(FileChangedError, match="is not the file that was"):
        open_planned(planned)


def test_reading_leader_epochs_loads_no_kernel(tmp_path: Path) -> None:
    """A job begins in a separate process, which needs none of them."""
    (tmp_path / LEADER_EPOCH_CHECKPOINT).write_text("0\n2\n0 0\n3 17\n")
    code = (
        "import sys; from segmentlog.log.checkpoint import read_leader_epochs; "
        "from segmentlog.log.leader_epochs import EpochStarts; "
        "path = sys.argv[1]; EpochStarts(path).truncate_from_start(9); "
        f"print(read_leader_epochs(path + '/{LEADER_EPOCH_CHECKPOINT}'), "
        "'segmentlog.native' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "((0, 0), (3, 17)) False"
