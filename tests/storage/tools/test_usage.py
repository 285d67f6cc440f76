"""``segmentlog usage`` shows where the disk went, and other commands mention large leftovers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

import segmentlog
from segmentlog import UsageKind

Run = Callable[..., Result]
SUFFIX = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def copy(example_data: str, tmp_path: Path) -> Path:
    """A copy of a broker's directory that has lost a partition to a deletion."""
    copy = Path(shutil.copytree(example_data, tmp_path / "data"))
    (copy / "orders-1").rename(copy / f"orders-1.{SUFFIX}-delete")
    return copy


def test_a_line_for_each_kind_and_the_largest_leftovers(run: Run, copy: Path) -> None:
    """The largest kind comes first, with what removes it; the sums are at the end."""
    (copy / "orders-0" / "00000000000000000000.log.deleted").write_bytes(b"x" * 3_000_000)
    kinds, places = run("usage", copy).stdout.split("\n\n")
    heading, first, *_, total = kinds.splitlines()
    found = segmentlog.usage(copy)
    columns = zip(*((each.n_files, each.n_bytes, each.n_allocated) for each in found), strict=True)
    sums = [f"{sum(column):,}" for column in columns]

    assert ["kind", "files", "bytes", "allocated", "removed", "by"] == heading.split()
    assert [".deleted", "1", "3,000,000"] == first.split()[:3]
    assert first.endswith(UsageKind.DELETED.removal)
    assert ["all", *sums] == total.split()
    assert [".deleted", "-delete"] == [line.split()[0] for line in places.splitlines()[1:]]
    assert places.splitlines()[2].endswith(f" {copy / f'orders-1.{SUFFIX}-delete'}")
    assert len(found) == len(run("usage", copy, "--all").stdout.split("\n\n")[1].splitlines()) - 1


def test_an_object_a_place_and_a_summary(run: Run, copy: Path) -> None:
    """JSON has the fields of Python's result, and sums in its last line."""
    *places, total = map(json.loads, run("usage", copy, "--json").stdout.splitlines())
    (left,) = [each for each in places if each["kind"] == "-delete"]

    assert ("orders", 1) == (left["topic"], left["partition"])
    assert UsageKind.DELETE.removal == left["removal"]
    assert sum(each["bytes"] for each in places) == total["bytes"]


def test_a_place_that_cannot_be_counted_is_named(
    run: Run, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit status shows that the sums are not complete."""
    found = segmentlog.usage(copy)
    failed = [found[0]._replace(problem="cannot be listed"), *found[1:]]
    monkeypatch.setattr("segmentlog.tools.usage.account_for", lambda *_: failed)

    assert run("usage", copy, status=1).stderr == f"{found[0].path}: cannot be listed\n"


@pytest.mark.parametrize("command", ["topics", "describe"])
def test_large_leftovers_and_deleted_partitions_are_mentioned(
    run: Run, copy: Path, command: str
) -> None:
    """A deleted partition always; the sizes of leftovers if they are large."""
    deleted = (
        "orders: 1 partition not in use, with the log still in "
        f"{copy / f'orders-1.{SUFFIX}-delete'}; segmentlog undelete restores it, and "
        "segmentlog usage shows what removes it"
    )
    small = run(command, copy).stderr.splitlines()
    (copy / "orders-0" / "00000000000000000000.log.deleted").write_bytes(b"x" * 3_000_000)
    (large,) = set(run(command, copy).stderr.splitlines()) - set(small)

    assert deleted in small
    assert "leftovers take space beside the logs: .deleted 3,000,000 bytes, -delete " in large


def test_verify_notes_large_leftovers(run: Run, copy: Path) -> None:
    """A note for each place, with what a broker does with it."""
    (copy / "orders-0" / "00000000000000000000.log.deleted").write_bytes(b"x" * 3_000_000)
    lines = run("verify", copy, "--notes").stdout.splitlines()
    found = [line for line in lines if line.startswith("note    leftovers: ")]

    assert 2 == len(found)
    assert found[0].startswith(
        f"note    leftovers: {copy / 'orders-0'}: 1 deleted file (.deleted): a starting "
    )


@pytest.mark.parametrize("state", ["delete", "stray", "future"])
def test_a_topic_that_is_gone_is_looked_for_in_renamed_directories(
    run: Run, copy: Path, state: str
) -> None:
    """The error names the directories, so that their records can be copied in time."""
    (copy / "payments-0").rename(copy / f"payments-0.{SUFFIX}-{state}")
    (copy / f"orders-1.{SUFFIX}-delete").rename(copy / f"orders-1.{SUFFIX}-{state}")
    error = run("cat", copy, "payments", status=2).stderr
    of_partition = run("cat", copy, "orders", "-p", "1", status=2).stderr

    assert f"its logs are still in {copy / f'payments-0.{SUFFIX}-{state}'}; " in error
    assert f"its logs are still in {copy / f'orders-1.{SUFFIX}-{state}'}; " in of_partition
    assert (state == "delete") == ("log.segment.delete.delay.ms" in error)
    assert "payments-0" not in run("cat", copy, "payment", status=2).stderr.partition(";")[2]
