"""Topics and their partitions in a broker's directory, by the metadata of its cluster."""

import shutil
from pathlib import Path

import pytest

import segmentlog
from segmentlog.cluster.directory_settings import read_partition_counts
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.tools.topics import summarize

pytestmark = pytest.mark.interop


def test_partitions_are_those_of_the_cluster(filled: tuple, tmp_path: Path) -> None:
    """A partition that is not in the directory is known from the metadata."""
    directory = segmentlog.open_log_dir(filled[0].log_dir)
    counts = read_partition_counts(ClusterMetadata([str(filled[0].log_dir)]))
    found = {each.topic: each for each in summarize(directory, internal=True)}

    assert {name: len(each) for name, each in directory.topics(internal=True).items()} == counts
    assert counts == {name: each.n_partitions for name, each in found.items()}
    for name in ("nulls-0", "__cluster_metadata-0"):
        shutil.copytree(filled[0].log_dir / name, tmp_path / name)
    topic = max(counts, key=counts.__getitem__)
    shutil.copytree(filled[0].log_dir / f"{topic}-0", tmp_path / f"{topic}-0")
    (copied,) = summarize(segmentlog.open_log_dir(tmp_path), [topic])

    assert (1, counts[topic]) == (copied.n_here, copied.n_partitions)
    assert counts[topic] > 1
