"""Extents of a job as columns: no extent is changed or lost, and their memory is bounded."""

import pickle
import tracemalloc

from segmentlog.model import TopicPartition
from segmentlog.writes.append import Extent, StagedFile
from segmentlog.writes.staged_files import JobExtents, TaskExtents


def plainly(extents: list[Extent]) -> dict[TopicPartition, list[Extent]]:
    """Extents grouped one by one."""
    grouped: dict[TopicPartition, list[Extent]] = {}
    for each in extents:
        grouped.setdefault(each.topic_partition, []).append(each)
    for of_one in grouped.values():
        of_one.sort(key=lambda extent: extent.first_offset)
    return grouped


def task(number: int, topics: list[str], partitions: list[int], *, keeps: bool) -> list[Extent]:
    """Some extents of each partition, in the shared file and in separate files."""
    extents, at = [], 0
    for i, partition in enumerate(partitions):
        end = at + 2**40 + 61 * i
        first = 1000 * (99 - number) + 10 * i if keeps else -1
        extents.append(
            Extent(
                topics[i % len(topics)],
                partition,
                StagedFile(f"file {number} {i % 3}", i % 3 > 0, number, i % 3),
                at,
                end,
                i + 1,
                first,
                first + i if keeps else -1,
            )
        )
        at = end
    return extents


def test_extents_come_back_by_topic_partition_in_the_order_of_the_tasks() -> None:
    """Extents that keep offsets are in the order of the offsets. Some tasks have both kinds."""
    topics = ["b", "a", "c"]
    for keeping in ([], [0, 1, 2], [1]):
        tasks = [
            task(number, topics[number:], partitions, keeps=number in keeping)
            for number, partitions in enumerate([[5, 2, 2**31 - 1, 5, 0], [], [2, 5, 5, 0, 0, 2]])
        ]
        sent = [pickle.loads(pickle.dumps(TaskExtents.of(each))) for each in tasks]
        assert tasks == [[*each] for each in sent]
        job = JobExtents(sent)
        flat = [extent for each in tasks for extent in each]
        expected = plainly(flat)

        assert len(flat) == len(job)
        assert sum(each.n_records for each in flat) == job.n_records
        assert {"b", "c"} | {each.topic for each in flat} == set(job.topics)
        assert expected.keys() == set(job.topic_partitions)
        assert expected == {each: job.extents(each) for each in job.topic_partitions}
        assert expected == {
            each: JobExtents([TaskExtents.of(flat)]).extents(each) for each in expected
        }
        for topic_partition, extents in expected.items():
            end = until = 7
            for extent in extents:
                end = extent.end_offset(end)
            for extent in job.spans(topic_partition):
                until = extent.end_offset(until)
            assert end == until


def test_nothing_is_staged() -> None:
    """No task staged an extent, or the tasks had no rows."""
    for job in (JobExtents([]), JobExtents([TaskExtents.of([])] * 2)):
        assert (0, 0, (), ()) == (len(job), job.n_records, job.topics, job.topic_partitions)
        assert [] == job.extents(TopicPartition("t", 0)) == job.spans(TopicPartition("t", 0))


def test_an_extent_costs_the_driver_some_fifty_bytes() -> None:
    """An object took 230 bytes, and the driver holds the extents of all tasks."""
    n_tasks, n_partitions = 50, 1000
    messages = [
        pickle.dumps(
            TaskExtents.of(
                [
                    Extent(
                        "orders",
                        partition,
                        StagedFile(f"segmentlog.0123456789abcdef.{number}.stage"),
                        10**9 + partition,
                        10**9 + 2 * partition,
                        1000 + partition,
                    )
                    for partition in range(n_partitions)
                ]
            )
        )
        for number in range(n_tasks)
    ]
    JobExtents(map(pickle.loads, messages))
    tracemalloc.start()
    try:
        job = JobExtents([pickle.loads(each) for each in messages])
        held, most = tracemalloc.get_traced_memory()
        for each in job.topic_partitions:
            assert n_tasks == len(job.extents(each))
        read = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    n = n_tasks * n_partitions
    # Beside them are what 1,000 topic-partitions and 50 tasks take, once each.
    assert held / n < 36 + 8 + 8
    assert most / n < 100
    assert read / n < 100
