"""One commit and its effects on each of its partitions."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import values, write
from soundness import assert_tidy

from segmentlog.model import TopicPartition
from segmentlog.txn.change import hold
from segmentlog.writes.commit import CommitSettings, commit_staged
from segmentlog.writes.config import ProducerConfig, WriteRequest
from segmentlog.writes.job import WriteJob
from segmentlog.writes.staged_files import JobExtents


def test_a_commit_empties_the_partitions_that_it_names_and_no_other(tmp_path: Path) -> None:
    """The commit appends to two topics and empties one of them.

    The other topic keeps its old records.
    """
    rows = pa.table({"topic": ["a", "b"], "value": [b"old", b"old"]})
    write(tmp_path, rows, topic=None)
    job = WriteJob.begin(WriteRequest(str(tmp_path), ProducerConfig()))
    stager = job.stager(0)
    stager.add(pa.table({"topic": ["a", "b"], "value": [b"new", b"new"]}).to_batches()[0])
    extents = [stager.finish()]

    with hold(str(tmp_path), 1) as held:
        settings = CommitSettings(emptied=[TopicPartition("a", 0)])
        commit_staged(held, job.token, JobExtents(extents), settings)
    job.abort()

    assert [b"new"] == values(tmp_path, "a")
    assert [b"old", b"new"] == values(tmp_path, "b")
    assert_tidy(tmp_path)


def test_a_decision_that_is_reported_as_failed_and_was_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may have renamed the state although it answers with an error.

    The rows are visible then, and an error would make the user write the job a second time.
    """
    write(tmp_path, pa.table({"value": [b"old"]}))
    real = os.rename

    def renamed(old: str, new: str, **how: int) -> None:
        real(old, new, **how)
        if new.endswith("segmentlog.state"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), old)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", renamed)
        write(tmp_path, pa.table({"value": [b"new"]}))

    assert [b"old", b"new"] == values(tmp_path)
    assert_tidy(tmp_path)
