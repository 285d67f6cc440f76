"""A tier is checked against the broker's list, against the local log, and by itself."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiven_plugin import AivenPlugin, KeyPair
from tiers import TOPIC_ID, Listed, announce, copy_segment, remove_local, written
from typer.testing import CliRunner

import segmentlog
from segmentlog.cluster.directory_settings import read_partition_ids
from segmentlog.errors import OptionError, RemoteSegmentError
from segmentlog.log.checkpoint import write_offsets
from segmentlog.maintain.verification.findings import Finding, FindingKind, Severity
from segmentlog.model import TopicPartition
from segmentlog.reads.cluster_image import ClusterMetadata
from segmentlog.testing.damage import flip_bit, garble_records
from segmentlog.tools.cli import app

EXAMPLE = Path(__file__).parents[4] / "examples" / "tier"
ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE
SEGMENT, OBJECT, COPY, LOG = (
    FindingKind.REMOTE_SEGMENT,
    FindingKind.REMOTE_OBJECT,
    FindingKind.REMOTE_COPY,
    FindingKind.REMOTE_LOG,
)
Told = tuple[Severity, FindingKind, int]


class Tier:
    """A log of ten segments of 100 records with a tier of nine; three of these are local, too.

    Parameters
    ----------
    root : a new directory.
    layout : of the tier.
    """

    def __init__(self, root: Path, layout: str) -> None:
        self.local, self.bucket, self.layout = root / "local", root / "bucket", layout
        self.partition = written(self.local)
        segments = segmentlog.open_log_dir(self.local).log("t", 0).segments
        self.options: dict[str, Any] = {
            "remote_storage": self.bucket,
            "remote_storage_layout": layout,
        }
        if layout == "local":
            logs = [
                copy_segment(self.partition, self.bucket, base, base + 100)
                for base in range(0, 900, 100)
            ]
            names = [path.stem for path in logs]
            self.folder = logs[0].parent
        else:
            pair = KeyPair(root)
            self.plugin = AivenPlugin(self.bucket, "", 1000, compresses=True, keys=pair)
            keys = self.plugin.copy_partition(self.partition, TOPIC_ID)
            names = [key.rpartition("/")[2] for key in keys]
            self.folder = self.bucket / f"t-{TOPIC_ID}" / "0"
            self.options["remote_storage_key_file"] = pair.file
        self.names = names
        self.listed = [
            Listed(
                name[21:],
                each.base_offset,
                each.base_offset + 99,
                each.size,
                max_timestamp_ms=each.largest_timestamp(),
            )
            for name, each in zip(names, segments, strict=False)
        ]
        remove_local(self.partition, *range(0, 600, 100))

    def announce(self, *others: Listed) -> None:
        """Write the broker's list: the segments of the tier, and others."""
        announce(self.local, [*self.listed, *others])

    def files(self, number: int) -> list[Path]:
        """The objects of a segment."""
        return sorted(self.folder.glob(f"{self.names[number]}*"))

    def add_log(self, name: str, topic_id: str) -> Path:
        """Copy a segment as one of another partition; returns the folder of its log."""
        if self.layout == "local":
            folder = self.bucket / f"{name}-{topic_id}"
            folder.mkdir()
            for path in self.files(0):
                shutil.copyfile(path, folder / path.name)
            return folder
        partition = self.local.parent / name
        shutil.copytree(self.partition, partition)
        for path in partition.glob("*.log"):
            if path.stem not in (f"{700:020d}", f"{800:020d}"):
                path.unlink()
        self.plugin.copy_partition(partition, topic_id)
        shutil.rmtree(partition)
        topic, _, number = name.rpartition("-")
        return self.bucket / f"{topic}-{topic_id}" / number

    def log(self, number: int) -> Path:
        """The object of a segment's batches."""
        return self.folder / f"{self.names[number]}.log"

    def told(self, least: Severity = Severity.WARNING) -> list[Finding]:
        """The findings about the partition with this severity, or a worse one."""
        order = [*Severity]
        found = segmentlog.verify(self.local, topics="t", records=True, **self.options)
        return [each for each in found if order.index(each.severity) <= order.index(least)]


def short(found: Sequence[Finding]) -> list[Told]:
    """Severity, kind and offset of each finding."""
    return [(each.severity, each.kind, each.offset) for each in found]


@pytest.fixture(params=["local", "aiven"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    """A tier of each layout; Aiven's is compressed and encrypted."""
    return Tier(tmp_path, request.param)


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_sound_tier_has_no_finding(tier: Tier, is_announced: bool) -> None:
    """The log is joined with its tier, with and without the broker's list, and the tier alone."""
    if is_announced:
        tier.announce()
    assert [] == tier.told(Severity.NOTE)
    assert [] == segmentlog.verify(**tier.options)


def test_a_real_brokers_tier_has_no_finding(tmp_path: Path) -> None:
    """A 4.3.1 broker has left its list, with a copy that had only begun."""
    logs, bucket = EXAMPLE / "logs", EXAMPLE / "bucket"
    assert [] == segmentlog.verify(logs, topics="visits", remote_storage=bucket)
    shutil.copytree(EXAMPLE, tmp_path / "tier")
    for path in (tmp_path / "tier" / "bucket").rglob("*0300-*"):
        path.unlink()
    found = segmentlog.verify(
        tmp_path / "tier" / "logs", topics="visits", remote_storage=tmp_path / "tier" / "bucket"
    )
    assert (ERROR, SEGMENT, 300) in short(found)


@pytest.mark.parametrize("number", [2, 8])
def test_a_finished_segment_that_is_missing(tier: Tier, number: int) -> None:
    """The list has it, and the bucket does not; the other segments are verified anyway."""
    tier.announce()
    for path in tier.files(number):
        path.unlink()
    tier.log(4).write_bytes(b"damaged")
    found = short(tier.told())

    assert (ERROR, SEGMENT, 100 * number) in found
    assert [each for each in found if each[2] // 100 == 4 and each[0] is ERROR], found
    assert {number, 4} == {offset // 100 for severity, _, offset in found if severity is ERROR}


def test_missing_offsets_without_a_list(tier: Tier) -> None:
    """The names in the bucket do not show the segment, but the offsets on both sides do."""
    for path in tier.files(3):
        path.unlink()
    (found,) = tier.told()

    assert (ERROR, FindingKind.OFFSET_GAP, 300, 400) == (
        found.severity,
        found.kind,
        found.offset,
        found.end_offset,
    )


@pytest.mark.parametrize(("n_missing", "severity"), [(2, Severity.WARNING), (9, ERROR)])
def test_missing_offsets_at_the_log_start(tier: Tier, n_missing: int, severity: Severity) -> None:
    """Retention may remove the first segments a minute before the checkpoint shows it."""
    write_offsets(str(tier.local), "log-start-offset-checkpoint", {TopicPartition("t", 0): 0})
    for number in range(n_missing):
        for path in tier.files(number):
            path.unlink()
    (found,) = tier.told()

    assert (severity, FindingKind.OFFSET_GAP, 0, min(100 * n_missing, 600)) == (
        found.severity,
        found.kind,
        found.offset,
        found.end_offset,
    )


def test_an_object_that_no_entry_has(tier: Tier) -> None:
    """Objects of unknown, deleted, and unfinished segments, and foreign objects differ."""
    ids = [f"{letter * 21}A" for letter in "BCD"]
    for segment_id in [*ids, "E" * 21 + "A"]:
        for path in tier.files(0):
            suffix = path.name.removeprefix(tier.names[0])
            shutil.copyfile(path, tier.folder / f"{900:020d}-{segment_id}{suffix}")
    if tier.layout == "aiven":
        for path in tier.folder.glob(f"{900:020d}-*.rsm-manifest"):
            path.unlink()
    (tier.folder / "notes.txt").write_bytes(b"")
    tier.announce(
        *(Listed(each, 900, 999, 1, state) for each, state in zip(ids, (0, 2, 3), strict=True))
    )
    found = tier.told(Severity.NOTE)

    assert {OBJECT} == {each.kind for each in found}
    told = {Path(each.path).name: (each.severity, each.message) for each in found}
    assert 5 == len(told)
    assert (NOTE, "its name is not a name of the layout; it is not read") == told["notes.txt"]
    expected = {
        "B": (NOTE, "being copied"),
        "C": (NOTE, "being deleted"),
        "D": (WARNING, "segment as deleted"),
        "E": (WARNING, "no entry"),
    }
    for name, (severity, message) in told.items():
        if name != "notes.txt":
            assert expected[name[21]][0] is severity
            assert expected[name[21]][1] in message


def test_a_copy_that_has_not_ended(tier: Tier) -> None:
    """Without the broker's list, the object that is written last shows whether a copy ended."""
    last = [path for path in tier.files(8) if path.name.endswith(("manifest", "checkpoint"))]
    last[0].unlink()
    found = tier.told(Severity.NOTE)

    assert [(NOTE, OBJECT, -1)] == short(found)
    assert "has not ended" in found[0].message


@pytest.mark.parametrize("number", [1, 7])
def test_sizes_and_offsets_that_differ_from_the_list(tier: Tier, number: int) -> None:
    """The list has another size: the objects do not stem from the copy that was announced."""
    tier.listed[number] = tier.listed[number]._replace(n_bytes=1234)
    tier.announce()
    found = [each for each in tier.told() if each.kind is SEGMENT]

    assert (ERROR, 100 * number) in {(each.severity, each.offset) for each in found}
    assert re.search(r"its size is \d+ in the tier, and 1234 in", found[0].message)


def test_batches_of_a_segment_that_differs_from_the_list(tier: Tier) -> None:
    """The local log has the offsets of the segment, so that only this check reads its batches."""
    tier.listed[8] = tier.listed[8]._replace(n_bytes=1234)
    tier.announce()
    data = bytearray(tier.log(8).read_bytes())
    data[len(data) // 2] ^= 1
    tier.log(8).write_bytes(data)
    found = [each for each in tier.told() if "1234" not in each.message]

    assert [(ERROR, 800)] == [(each.severity, each.offset) for each in found]
    assert found[0].kind in (SEGMENT, FindingKind.CORRUPT_BATCH)


def test_an_end_offset_that_differs_from_the_list(tier: Tier) -> None:
    """A manifest has the end of its segment; in the other layout, the batches show it."""
    tier.listed[8] = tier.listed[8]._replace(end_offset=850)
    tier.announce()
    found = tier.told()

    assert (ERROR, SEGMENT, 800) in short(found)
    assert re.search("99.* 850", found[0].message)


def test_a_damaged_copy_of_local_offsets(tier: Tier) -> None:
    """A read never opens the copy, and a broker would, after its local retention."""
    data = bytearray(tier.log(7).read_bytes())
    data[len(data) // 2] ^= 1
    tier.log(7).write_bytes(data)
    found = tier.told()

    assert [ERROR] == [each.severity for each in found]
    assert found[0].kind in (SEGMENT, FindingKind.CORRUPT_BATCH)
    assert found[0].offset // 100 == 7


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_copy_that_differs_from_the_local_log(tier: Tier, is_announced: bool) -> None:
    """The finding has the byte and the offset of the first batch that differs.

    The local record was erased after the copy.
    """
    if is_announced:
        tier.announce()
    segmentlog.erase(tier.local, b"7-40", "t")
    (found,) = tier.told()

    assert (ERROR, COPY) == (found.severity, found.kind)
    first = segmentlog.open_log_dir(tier.local).log("t", 0).segments[1].find(740)
    assert first is not None
    assert (first.header.base_offset, first.position) == (found.offset, found.position)
    assert str(tier.log(7)) == found.path


def test_copies_with_other_borders(tmp_path: Path) -> None:
    """A former leader has copied offsets in one segment that are several segments here."""
    partition, other, bucket = written(tmp_path / "local"), tmp_path / "other", tmp_path / "bucket"
    other.mkdir()
    joined = b"".join((partition / f"{base:020d}.log").read_bytes() for base in (500, 600, 700))
    (other / f"{500:020d}.log").write_bytes(joined)
    for base in range(0, 500, 100):
        copy_segment(partition, bucket, base, base + 100)
    copied = copy_segment(other, bucket, 500, 800)
    remove_local(partition, *range(0, 600, 100))
    found = segmentlog.verify(tmp_path / "local", remote_storage=bucket)
    assert {FindingKind.OFFSET_INDEX, FindingKind.TIME_INDEX} == {each.kind for each in found}

    remove_local(partition, 700)
    shutil.copyfile(partition / f"{600:020d}.log", partition / f"{700:020d}.log")
    found = segmentlog.verify(tmp_path / "local", remote_storage=bucket)
    copies = [each for each in found if each.kind is COPY]
    assert [(str(copied), 700)] == [(each.path, each.offset) for each in copies]


def test_segments_of_a_lost_leader_are_not_compared(tmp_path: Path) -> None:
    """Their batches differ from the log by right; their checksums are verified."""
    partition, bucket = written(tmp_path / "local"), tmp_path / "bucket"
    for base in range(0, 900, 100):
        copy_segment(partition, bucket, base, base + 100)
    lost = copy_segment(partition, bucket, 800, 900, ((0, 0), (1, 750)))
    other = written(tmp_path / "other", 9, 100)
    segmentlog.erase(tmp_path / "other", b"8-3")
    shutil.copyfile(other / f"{800:020d}.log", lost)
    remove_local(partition, *range(0, 600, 100))
    assert [] == segmentlog.verify(tmp_path / "local", remote_storage=bucket)
    data = bytearray(lost.read_bytes())
    data[-1] ^= 1
    lost.write_bytes(data)
    (found,) = segmentlog.verify(tmp_path / "local", remote_storage=bucket)
    assert (ERROR, FindingKind.CORRUPT_BATCH, str(lost)) == (
        found.severity,
        found.kind,
        found.path,
    )


def test_a_segment_in_which_the_local_log_begins(tmp_path: Path) -> None:
    """The log has the first batch of the segment; each damaged batch is found once."""
    partition, other, bucket = written(tmp_path / "local"), tmp_path / "other", tmp_path / "bucket"
    other.mkdir()
    parts = [(partition / f"{base:020d}.log").read_bytes() for base in (500, 600, 700, 800)]
    joined = other / f"{500:020d}.log"
    joined.write_bytes(b"".join(parts))
    for base in range(0, 500, 100):
        copy_segment(partition, bucket, base, base + 100)
    copied = copy_segment(other, bucket, 500, 900)
    remove_local(partition, *range(0, 600, 100))
    for batch in (3, 1, 0):
        flip_bit(batch=batch, field="crc")(copied)
    found = segmentlog.verify(tmp_path / "local", remote_storage=bucket, records=True)

    damaged = [each for each in found if each.kind is FindingKind.CORRUPT_BATCH]
    assert [500, 600, 800] == sorted(each.offset for each in damaged)
    assert all("next good batch" in each.message for each in damaged if each.offset == 600)
    assert COPY not in {each.kind for each in found}


@pytest.mark.parametrize("is_lost", [True, False])
def test_records_of_segments_outside_the_log_are_parsed(tmp_path: Path, is_lost: bool) -> None:
    """A read never opens a copy of local offsets, or a segment of a lost leader."""
    partition, bucket = written(tmp_path / "local"), tmp_path / "bucket"
    copied = [copy_segment(partition, bucket, base, base + 100) for base in range(0, 900, 100)][-1]
    if is_lost:
        copied = copy_segment(partition, bucket, 800, 900, ((0, 0), (1, 750)))
    remove_local(partition, *range(0, 600, 100))
    garble_records(batch=0)(copied)
    for records in (False, True):
        found = segmentlog.verify(tmp_path / "local", remote_storage=bucket, records=records)
        kinds = [] if is_lost else [COPY]
        assert kinds + [FindingKind.CORRUPT_RECORDS] * records == [each.kind for each in found]
    assert (ERROR, 800, str(copied)) == (found[-1].severity, found[-1].offset, found[-1].path)


def test_logs_that_no_partition_has(tier: Tier) -> None:
    """A log directory need not have all topics: without the cluster's metadata, that is a note.

    Another partition of a known topic is not a finding, and another topic id of a known name is a
    warning.
    """
    other, foreign = "B" * 21 + "A", "C" * 21 + "A"
    tier.add_log("t-1", TOPIC_ID)
    again = [str(tier.add_log(f"t-{number}", other)) for number in (0, 3)]
    unknown = str(tier.add_log("u-0", foreign))

    def told(**options: Any) -> list[tuple[Severity, FindingKind, str, int, str]]:
        found = segmentlog.verify(**{"path": tier.local, **tier.options, **options})
        return [
            (each.severity, each.kind, each.topic, each.partition, each.path) for each in found
        ]

    of_again = (WARNING, LOG, "t", -1, again[0])
    assert [of_again, (NOTE, LOG, "u", -1, unknown)] == told()
    assert [of_again] == told(topics="t")
    assert [of_again] == told(partitions=0, topics="t")
    (found, *_) = segmentlog.verify(tier.local, topics="t", **tier.options)
    assert found.message.startswith(
        f"2 partitions of the topic id {other}: the topic of this name"
    )
    assert [(WARNING, LOG, "t", -1)] == [each[:4] for each in told(path=None)]


def test_logs_that_the_cluster_does_not_have(tier: Tier) -> None:
    """The metadata has the partitions of all brokers, so that all others are left of a topic."""
    name = "__cluster_metadata-0"
    shutil.copytree(EXAMPLE.parent / "cluster" / name, tier.local / name)
    known_id, partition = min(read_partition_ids(ClusterMetadata([str(tier.local)])))
    unknown = tier.add_log("u-0", "B" * 21 + "A")
    tier.add_log(f"v-{partition}", known_id)
    found = [
        each
        for each in segmentlog.verify(tier.local, **tier.options)
        if not each.kind.startswith("start-")  # a broker would take the partitions for strays
    ]

    assert [(WARNING, LOG, "u", str(unknown))] == [
        (each.severity, each.kind, each.topic, each.path) for each in found
    ]
    assert "the metadata of the cluster does not have them" in found[0].message


@pytest.mark.parametrize("number", [2, 8])
def test_leader_epochs_that_cannot_be_read(tmp_path: Path, number: int) -> None:
    """The object is named in a finding, and a log with equal offsets is verified anyway."""
    tier = Tier(tmp_path, "local")
    (path,) = tier.folder.glob(f"{100 * number:020d}-*.leader_epoch_checkpoint")
    path.write_bytes(b"\xff")
    data = bytearray((tier.partition / f"{600:020d}.log").read_bytes())
    data[-1] ^= 1
    (tier.partition / f"{600:020d}.log").write_bytes(data)
    found = tier.told()

    assert (ERROR, SEGMENT, str(path)) in [(each.severity, each.kind, each.path) for each in found]
    assert (number == 8) == (FindingKind.CORRUPT_BATCH in {each.kind for each in found})


def test_a_partition_without_a_topic_id(tier: Tier) -> None:
    """Such a partition is read without the tier, although the tier has its segments."""
    (tier.partition / "partition.metadata").unlink()
    found = tier.told()

    assert [(WARNING, LOG, -1)] == short(found)
    assert "is read without the tier: restore the file" in found[0].message


def test_a_damaged_manifest_of_another_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The logs of the directory are verified anyway, and the manifest is named."""
    tier = Tier(tmp_path, "aiven")
    folder = tier.add_log("u-0", "B" * 21 + "A")
    for path in folder.glob("*.rsm-manifest"):
        path.write_bytes(b"{")
    found = segmentlog.verify(tier.local, **tier.options)

    assert [(NOTE, LOG, "u")] == [(each.severity, each.kind, each.topic) for each in found]
    assert f"{folder}/" in caplog.text
    alone = segmentlog.open_log_dir(**tier.options)
    assert 900 == alone.log("t", 0).scan().read_all().num_rows
    with pytest.raises(RemoteSegmentError, match="not JSON"):
        alone.log("u", 0).scan()


@pytest.mark.parametrize("number", [2, 8])
def test_an_object_that_is_empty_or_cannot_be_read(tmp_path: Path, number: int) -> None:
    """A finding names the object, and other topics are verified anyway."""
    tier = Tier(tmp_path, "local")
    path = tier.log(number)
    path.write_bytes(b"")
    assert (ERROR, SEGMENT, 100 * number) in short(tier.told())
    path.unlink()
    path.mkdir()
    for _ in range(2):
        with segmentlog.open_writer(tier.local, "u") as writer:
            writer.append(pa.table({"value": [b"a"]}))
    (damaged,) = (tier.local / "u-0").glob("*.log")
    flip_bit(batch=0, field="crc")(damaged)
    found = segmentlog.verify(tier.local, **tier.options)

    assert {("t", FindingKind.UNREADABLE_FILE), ("u", FindingKind.CORRUPT_BATCH)} == {
        (each.topic, each.kind) for each in found if each.severity is ERROR
    }
    assert str(path) in {each.path for each in found}
    result = CliRunner().invoke(
        app, ["verify", str(tier.local), "--remote-storage", str(tier.bucket)]
    )
    assert 1 == result.exit_code
    assert "unreadable-file" in result.stdout


def test_a_wrong_key(tmp_path: Path) -> None:
    """The finding names the object, and no key stands in it."""
    tier = Tier(tmp_path, "aiven")
    tier.announce()
    (tmp_path / "wrong").mkdir()
    tier.options["remote_storage_key_file"] = KeyPair(tmp_path / "wrong", bits=2048).file
    found = tier.told()

    assert {(ERROR, SEGMENT)} == {(each.severity, each.kind) for each in found}
    assert all("PRIVATE" not in each.message for each in found)


def test_the_command_lists_the_findings(tier: Tier) -> None:
    """The exit status is 1, in text and in JSON; a warning of the library is not repeated."""
    for path in tier.files(3):
        path.unlink()
    arguments = ["verify", str(tier.local), "--topic", "t"]
    for name, value in tier.options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    told = CliRunner().invoke(app, arguments)
    assert 1 == told.exit_code
    assert "error   offset-gap: " in told.stdout
    assert "1 error, 0 warnings" in told.stdout
    assert "" == told.stderr
    tier.add_log("t-0", "B" * 21 + "A")
    told = CliRunner().invoke(app, arguments)
    assert "warning remote-log: " in told.stdout
    lines = CliRunner().invoke(app, [*arguments, "--json"]).stdout.splitlines()
    assert ["remote-log", "offset-gap"] == [json.loads(each)["kind"] for each in lines[:-1]]


def test_a_directory_that_was_opened_without_its_tier(tier: Tier) -> None:
    """The tier belongs to `open_log_dir` then."""
    opened = segmentlog.open_log_dir(tier.local)
    with pytest.raises(OptionError, match="remote_storage"):
        segmentlog.verify(opened, **tier.options)
    assert [] == segmentlog.verify(segmentlog.open_log_dir(tier.local, **tier.options), topics="t")
