"""Sequences of producers over a log: lost batches, doubled batches, and compaction."""

import json
import random
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from plain_writes import write
from producer_batches import COMMIT, batch, marker, plant
from typer.testing import CliRunner

import segmentlog
from segmentlog import Producer
from segmentlog.format.topic_config import TopicConfig
from segmentlog.maintain.verification.findings import Finding, FindingKind, Severity
from segmentlog.maintain.verification.verify_log import LogCheck
from segmentlog.tools.cli import app
from segmentlog.writes.config import ProducerConfig

LARGEST = 2**31 - 1


def laid(*batches: tuple[int, int, int, int], begin: int = 0) -> list[bytes]:
    """Batches of producers (id, epoch, sequence, records), one after the other from an offset."""
    made, offset = [], begin
    for producer_id, epoch, sequence, n_records in batches:
        made.append(batch(producer_id, epoch, sequence, n_records, base_offset=offset))
        offset += n_records
    return made


def found(directory: Path) -> list[Finding]:
    """The findings that `--producers` adds."""
    log = segmentlog.open_log_dir(directory).log("t", 0)
    without = {*LogCheck(log).findings()}
    return [each for each in LogCheck(log, with_producers=True).findings() if each not in without]


def table(directory: Path) -> list[dict]:
    """The rows of the table of producers."""
    return segmentlog.open_log_dir(directory).log("t", 0).producers().to_pylist()


def test_batches_in_sequence_are_no_finding(tmp_path: Path) -> None:
    """Producers interleave, epochs change, a sequence wraps, and some records have no producer."""
    config = ProducerConfig(topic_config=TopicConfig(segment_bytes=2000), batch_size=300)
    rows = pa.table({"value": [b"%d" % i for i in range(50)]})
    for producer in (Producer(1, 0, LARGEST - 20), Producer(2), None, Producer(1), Producer(2, 1)):
        write(tmp_path, rows, producer=producer, config=config)

    assert [] == found(tmp_path)
    seen = [(*row.values(),) for row in table(tmp_path)]
    assert [
        (1, 0, 0, 199, LARGEST - 20, 78),
        (2, 0, 50, 99, 0, 49),
        (2, 1, 200, 249, 0, 49),
    ] == [row[:6] for row in seen]
    assert [(100, 0, [], [], []), (50, 0, [], [], []), (50, 0, [], [], [])] == [
        row[7:] for row in seen
    ]


def test_epochs_that_no_broker_gives(tmp_path: Path) -> None:
    """Each is a separate epoch in the table, and fences no other epoch."""
    epochs = [-(2**15), -2, -1, 2**15 - 1]
    plant(tmp_path, *laid(*((i, epoch, 0, 1) for i, epoch in enumerate(epochs))))

    assert [] == found(tmp_path)
    assert [*enumerate(epochs)] == [
        (row["producer_id"], row["producer_epoch"]) for row in table(tmp_path)
    ]


def test_a_lost_batch_is_an_error_if_nothing_explains_it(tmp_path: Path) -> None:
    """Other batches have its offsets, so compaction has not removed it."""
    plant(tmp_path, *laid((1, 0, 0, 3), (2, 0, 0, 2), (1, 0, 7, 3), (1, 1, 2, 1)))

    gap, new_epoch = found(tmp_path)
    assert (Severity.ERROR, FindingKind.SEQUENCE_GAP, 5) == (gap[0], gap[1], gap.offset)
    assert "producer 1 with epoch 0 continues at sequence 7 instead of 3: 4 rec" in gap.message
    assert "continues at sequence 2 instead of 0" in new_epoch.message
    first, second, _ = table(tmp_path)
    place = {"offset": 5, "expected_sequence": 3, "first_sequence": 7, "missing_offsets": 0}
    assert [place] == first["gaps"]
    assert [8] == [each["offset"] for each in second["gaps"]]


def test_a_gap_with_as_many_missing_offsets_is_a_note(tmp_path: Path) -> None:
    """Compaction leaves such a gap, and so does a lost segment."""
    before, after = laid((1, 0, 0, 3)), laid((1, 0, 7, 3), (2, 0, 1, 1), begin=7)
    plant(tmp_path, *before, *after)
    plant(tmp_path, *laid((1, 0, 12, 1), begin=13), base_offset=13)

    first, second = found(tmp_path)
    assert (Severity.NOTE, FindingKind.SEQUENCE_GAP, 7) == (first[0], first[1], first.offset)
    assert "4 sequences of producers are missing before 1 batches" in first.message
    assert "compacted away, or lost" in second.message
    plant(tmp_path, *laid((1, 0, 13, 1), begin=13), base_offset=13)
    assert [Severity.NOTE, Severity.ERROR] == [each.severity for each in found(tmp_path)]


def test_a_doubled_batch_names_its_original(tmp_path: Path) -> None:
    """The original is named if it is one of the last five batches."""
    six = [(1, 0, 2 * i, 2) for i in range(6)]
    plant(tmp_path, *laid(*six, six[5], six[2], (1, 0, 12, 1), six[0], (1, 0, 2, 1)))

    errors = found(tmp_path)
    assert [FindingKind.SEQUENCE_REPEAT] * 3 == [each.kind for each in errors]
    assert [12, 14, 17] == [each.offset for each in errors]
    assert "repeats sequences 10 to 11 of the batch at offset 10" in errors[0].message
    assert "repeats sequences 4 to 5 of the batch at offset 4" in errors[1].message
    assert "goes back to sequence 0 instead of 13" in errors[2].message
    (row,) = table(tmp_path)
    assert [(12, 10), (14, 4), (17, None)] == [
        (each["offset"], each["original_offset"]) for each in row["repeats"]
    ]


def test_a_fenced_batch_is_an_error(tmp_path: Path) -> None:
    """A marker raises the epoch as well."""
    opened = batch(1, 0, 0, is_transactional=True)
    plant(
        tmp_path,
        opened,
        marker(1, 1, base_offset=1, kind=COMMIT),
        batch(1, 0, 1, base_offset=2),
        batch(1, 1, 0, base_offset=3),
    )

    (fenced,) = found(tmp_path)
    assert (FindingKind.PRODUCER_EPOCH, 2) == (fenced.kind, fenced.offset)
    first, second = table(tmp_path)
    assert ([{"offset": 2, "current_epoch": 1}], 0) == (first["fenced"], first["markers"])
    assert (1, 0, 0) == (second["markers"], second["first_sequence"], second["last_sequence"])


def test_a_log_that_begins_with_a_marker_shows_nothing_of_the_data_before(
    tmp_path: Path,
) -> None:
    """Retention may have removed the data."""
    plant(tmp_path, marker(1, 2), batch(1, 2, 17, base_offset=1), batch(1, 2, 18, base_offset=2))

    assert [] == found(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_gaps_and_repeats_are_those_of_a_plain_count(tmp_path: Path, seed: int) -> None:
    """Some batches of three producers are left out, and some are repeated."""
    rng = random.Random(seed)
    next_of, sent = defaultdict[int, int](int), list[tuple[int, int, int, int]]()
    n_lost, n_doubled = 0, 0
    for _ in range(200):
        producer_id, n_records, dice = rng.randrange(3), rng.randrange(1, 4), rng.random()
        mine = [each for each in sent if each[0] == producer_id][-5:]
        if mine and dice < 0.05:
            sent.append(rng.choice(mine[-1:]))
            n_doubled += 1
            continue
        if mine and dice < 0.1:
            next_of[producer_id] += 5
            n_lost += 1
        sent.append((producer_id, 0, next_of[producer_id], n_records))
        next_of[producer_id] += n_records
    plant(tmp_path, *laid(*sent))

    kinds = [each.kind for each in found(tmp_path)]
    assert (n_lost, n_doubled) == (
        kinds.count(FindingKind.SEQUENCE_GAP),
        kinds.count(FindingKind.SEQUENCE_REPEAT),
    )
    rows = table(tmp_path)
    assert len(sent) == sum(row["batches"] for row in rows)
    assert [next_of[row["producer_id"]] - 1 for row in rows] == [
        row["last_sequence"] for row in rows
    ]


def test_brokers_of_all_versions_leave_nothing_to_find() -> None:
    """The logs have transactions, compaction and retention. Some producers have only markers."""
    golden = Path(__file__).parents[3] / "golden"
    n_producers = 0
    for directory in sorted(golden.glob("kafka-*/")):
        opened = segmentlog.open_log_dir(directory)
        for topic_partition in opened.topic_partitions():
            log = opened.log(*topic_partition)
            kinds = {each.kind for each in LogCheck(log, with_producers=True).findings()}
            assert kinds.isdisjoint(
                {FindingKind.SEQUENCE_GAP, FindingKind.SEQUENCE_REPEAT, FindingKind.PRODUCER_EPOCH}
            )
            n_producers += log.producers().num_rows

    assert n_producers > 50


def test_the_command_says_what_helps(tmp_path: Path) -> None:
    """With the option, the command fails and names a remedy."""
    plant(tmp_path, *laid((1, 0, 0, 1), (1, 0, 2, 1)))
    assert 0 == CliRunner().invoke(app, ["verify", str(tmp_path)]).exit_code
    done = CliRunner().invoke(app, ["verify", str(tmp_path), "--producers"])
    assert 1 == done.exit_code
    assert "error   sequence-gap: " in done.output
    assert "Log.producers() lists each gap" in done.output
    as_json = CliRunner().invoke(app, ["verify", str(tmp_path), "--producers", "--json"])
    assert "sequence-gap" == json.loads(as_json.output.splitlines()[0])["kind"]
