"""`verify` of logs in object stores: each kind of damage is a finding with its object and byte."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import segmentlog
from segmentlog.bucket.checkpoint_objects import checkpoint_key
from segmentlog.bucket.directory_objects import DirectoryObjects
from segmentlog.bucket.sequence import commit_key
from segmentlog.errors import OptionError
from segmentlog.maintain.verification import verify_log
from segmentlog.maintain.verification.findings import FindingKind
from segmentlog.tools.cli import app

_N_COMMITS = 35


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with a checkpoint and commits after it, and a mirror of brokers' logs."""
    place = tmp_path_factory.mktemp("made")
    for number in range(_N_COMMITS):
        with segmentlog.open_writer(
            f"bucket+file://{place}/log", "orders", num_partitions=None if number else 2
        ) as writer:
            writer.append(
                pa.table({"key": [f"{number}-{i}" for i in range(9)], "value": ["v"] * 9})
            )
    golden = Path(__file__).parents[2] / "golden" / "kafka-4.3.1"
    segmentlog.mirror(golden, to=f"bucket+file://{place}/mirrored")
    return place


def _changed(path: Path, change: Callable[[Any], object]) -> None:
    commit = json.loads(path.read_text())
    change(commit)
    path.write_text(json.dumps(commit))


def _objects(log: Path) -> list[Path]:
    return sorted(log.glob("data/*/*.batches"), key=lambda each: each.stat().st_mtime_ns)


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _a_later_hint(log: Path) -> None:
    """A good checkpoint of a log that had more commits."""
    for number in range(30, _N_COMMITS + 1):
        (log / commit_key(number)).unlink()


def _another_checkpoint(log: Path) -> None:
    """A commit that was exchanged after the checkpoint was written."""
    _changed(log / commit_key(3), lambda commit: commit.update(time_ms=commit["time_ms"] + 1))
    _changed(log / commit_key(4), lambda commit: commit["extents"]["max_timestamp"].reverse())


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str, bool]] = {
    "a commit is missing": (
        lambda log: (log / commit_key(34)).unlink(), "commit", commit_key(34), True),
    "an old commit is missing": (
        lambda log: (log / commit_key(7)).unlink(), "commit", commit_key(7), True),
    "a commit is empty": (
        lambda log: (log / commit_key(35)).write_bytes(b""), "commit", commit_key(35), True),
    "a commit was copied": (
        lambda log: (log / commit_key(35)).write_bytes((log / commit_key(34)).read_bytes()),
        "commit", commit_key(35), True),
    "a commit does not follow": (
        lambda log: _changed(log / commit_key(35), lambda commit: commit["extents"].update(
            base_offset=[0] * len(commit["extents"]["base_offset"]),
            shift=[0] * len(commit["extents"]["base_offset"]))),
        "commit", commit_key(35), True),
    "the marker is missing": (
        lambda log: (log / "segmentlog.bucket").unlink(), "commit", "segmentlog.bucket", True),
    "the checkpoint is damaged": (
        lambda log: _flip(log / checkpoint_key(32), 900), "checkpoint", checkpoint_key(32), True),
    "the checkpoint is missing": (
        lambda log: (log / checkpoint_key(32)).unlink(), "checkpoint", checkpoint_key(32), True),
    "the hint is none": (
        lambda log: (log / "segmentlog/newest.json").write_text("{}"),
        "checkpoint", "segmentlog/newest.json", True),
    "the checkpoint is of other commits": (
        _another_checkpoint, "checkpoint", checkpoint_key(32), True),
    "commits were removed": (_a_later_hint, "checkpoint", checkpoint_key(32), True),
    "an object is missing": (
        lambda log: _objects(log)[5].unlink(), "data-object", ".batches", True),
    "an object is cut": (
        lambda log: _objects(log)[5].write_bytes(_objects(log)[5].read_bytes()[:-1]),
        "data-object", ".batches", True),
    "a bit has flipped": (
        lambda log: _flip(_objects(log)[5], 80), "corrupt-batch", "orders-", False),
    "a commit has another time": (
        lambda log: _changed(log / commit_key(34), lambda commit: commit["extents"].update(
            max_timestamp=[1 for _ in commit["extents"]["max_timestamp"]])),
        "data-object", ".batches", False),
}  # fmt: skip


@pytest.fixture
def log(made: Path, tmp_path: Path) -> Path:
    """A copy of the log, to damage it."""
    shutil.copytree(made / "log", tmp_path / "log")
    return tmp_path / "log"


def test_sound_logs_have_no_findings(made: Path) -> None:
    for name in ("log", "mirrored"):
        url = f"bucket+file://{made}/{name}"
        assert [
            each
            for each in segmentlog.verify(url, records=True)
            if each.kind in ("commit", "data-object", "checkpoint")
        ] == []
        assert segmentlog.verify(url, shallow=True) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_a_finding_with_its_object(damage: str, log: Path) -> None:
    make, kind, path, is_shallow = DAMAGES[damage]
    make(log)
    url = f"bucket+file://{log}"
    for shallow in (True, False):
        try:
            found = [(each.kind, each.path) for each in segmentlog.verify(url, shallow=shallow)]
        except segmentlog.LogDirectoryError:
            assert damage == "the marker is missing"
            assert not shallow
            continue
        assert all(where.startswith(url) for _, where in found)
        is_found = any(each == kind and path in where for each, where in found)
        assert is_found == (is_shallow or not shallow), found


def test_what_no_checksum_covers_in_a_mirror(made: Path, tmp_path: Path) -> None:
    """Leader epochs are under no checksum; the digest of the commit covers them."""
    shutil.copytree(made / "mirrored", tmp_path / "mirrored")
    url = f"bucket+file://{tmp_path}/mirrored"
    changed = _objects(tmp_path / "mirrored")[0]
    before = {each.kind for each in segmentlog.verify(url)}
    _flip(changed, 12)  # the highest byte of the first batch's leader epoch
    found = [each for each in segmentlog.verify(url) if each.kind not in before]
    assert any(each.kind == "data-object" and each.position == 0 for each in found)
    # A snapshot of producers, which only the commit knows: the last bytes of the object.
    _flip(changed, 12)
    _flip(changed, changed.stat().st_size - 1)
    assert {each.kind for each in segmentlog.verify(url, shallow=True)} == {"data-object"}


@pytest.mark.parametrize("moment", ["the objects are listed", "the batches are read"])
@pytest.mark.parametrize("removes", ["records", "the topic"])
def test_what_a_sweep_removes_meanwhile_is_no_damage(
    moment: str, removes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"bucket+file://{tmp_path}/log"
    for number in range(4):
        with segmentlog.open_writer(url, "orders") as writer:
            writer.append(pa.table({"value": [f"{number}-{i}" for i in range(5)]}))
    with segmentlog.open_writer(url, "others") as writer:
        writer.append(pa.table({"value": ["a"]}))

    def sweeps() -> None:
        monkeypatch.undo()
        if removes == "records":
            segmentlog.delete_records(url, "orders", 0, offset=10)
        else:
            segmentlog.delete_topic(url, "orders")
        assert segmentlog.sweep(url, longest_read_days=0).keys

    def meanwhile(real: Any) -> Any:
        def called(self: Any, *given: Any, **options: Any) -> Any:
            if moment == "the batches are read" or given[:1] == ("data/",):
                sweeps()
            return real(self, *given, **options)

        return called

    of: Any = DirectoryObjects
    name = "list"
    if moment == "the batches are read":
        of, name = verify_log.LogCheck, "findings"
    monkeypatch.setattr(of, name, meanwhile(getattr(of, name)))
    findings = [*segmentlog.verify(url)]
    if removes == "the topic" and moment == "the batches are read":
        findings = [each for each in findings if each.kind != FindingKind.VANISHED_SEGMENT]
    assert findings == []
    assert [*segmentlog.verify(url)] == []


def test_the_command(log: Path) -> None:
    url = f"bucket+file://{log}"
    assert CliRunner().invoke(app, ["verify", url, "--shallow"]).exit_code == 0
    (log / commit_key(35)).write_bytes(b"no commit")
    done = CliRunner().invoke(app, ["verify", url, "--json"])
    assert done.exit_code == 1
    finding = json.loads(done.stdout.splitlines()[0])
    assert finding["kind"] == "commit"
    assert finding["path"].endswith(commit_key(35))


def test_a_directory_has_no_shallow_verification(tmp_path: Path) -> None:
    with segmentlog.open_writer(tmp_path / "log", "orders") as writer:
        writer.append(pa.table({"value": ["a"]}))
    with pytest.raises(OptionError, match="shallow"):
        segmentlog.verify(tmp_path / "log", shallow=True)
