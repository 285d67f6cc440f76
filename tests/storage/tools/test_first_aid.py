"""A stranger with a broker that does not start: from the symptom to the command."""

import os
import re
import shutil
from pathlib import Path

import pytest
from damaged_starts import writable_copy
from first_aid import CASES, looked_up, type_in
from namespaces import common_directory, in_namespace

import segmentlog
from segmentlog import RecoveryKind, Severity, StartAction

pytestmark = pytest.mark.linux

CLUSTER = Path(__file__).parents[3] / "examples" / "cluster"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A copy of a directory that a broker has cleanly stopped."""
    return writable_copy(CLUSTER, tmp_path / "kafka 1")


def assert_sound(directory: Path) -> None:
    """A broker would start and serve each log, and `verify` finds no error."""
    assert not [each for each in segmentlog.preflight(directory) if each.has_harm]
    assert not [each for each in segmentlog.verify(directory) if each.severity == Severity.ERROR]


@pytest.mark.parametrize("name", CASES)
def test_the_advice_mends_the_directory_if_it_is_typed_as_it_is_printed(
    directory: Path, name: str
) -> None:
    """The fault and the command are in the output or on the page; afterwards nothing is wrong."""
    case = CASES[name]
    case.harm(directory)
    text = looked_up(directory)
    assert case.told in text
    assert case.command.startswith("mv ") or case.command.replace(" DIR", "") in text
    type_in(case.command, directory, case.status)
    assert_sound(directory)
    assert (directory / ".kafka_cleanshutdown").exists()


def test_lost_ids_are_printed_as_far_as_the_disks_know_them(directory: Path) -> None:
    """Only the id of the cluster is asked for; another directory of the broker has it, too."""
    ids = directory / "meta.properties"
    before = dict(re.findall(r"(?m)^([a-z.]+)=(.*)$", ids.read_text()))
    ids.unlink()
    (step,) = [each for each in segmentlog.preflight(directory) if each.has_harm]
    lines = dict(
        each.split("=") for each in step.remedy.partition(": ")[2].split("; ")[0].split(" | ")
    )
    assert before | {"cluster.id": "…"} == lines
    found = segmentlog.recover(directory, dry_run=True)
    assert [RecoveryKind.NOT_MARKED] == [each.kind for each in found]
    ids.write_text(
        "".join(f"{key}={value}\n" for key, value in (lines | {"cluster.id": "new"}).items())
    )
    assert_sound(directory)


def test_a_file_of_root_in_the_directory_of_another_user_is_named() -> None:
    """A broker runs as the owner of its directory; the remedy is typed as it is printed."""
    with common_directory() as place:
        directory = writable_copy(CLUSTER, place / "kafka 1")
        for path in (directory, *directory.rglob("*")):
            os.chown(path, 65534, 65534)
        index = directory / "orders-1" / f"{0:020d}.index"
        os.chown(index, 0, 0)
        (step,) = [each for each in segmentlog.preflight(directory) if each.has_harm]
        assert (StartAction.OFFLINE, str(index)) == (step.action, step.path)
        assert "it belongs to user 0 (root), -rw-r--r--" in step.reason
        for command in step.remedy.split(" && "):
            type_in(command, directory)
        assert 65534 == index.stat().st_uid
        assert_sound(directory)


_FULL = """
import shutil, sys, subprocess
from pathlib import Path
from damaged_starts import writable_copy
from first_aid import looked_up, type_in
import segmentlog

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", "/mnt"], check=True)
directory = writable_copy(Path(sys.argv[1]), Path("/mnt/kafka"))
filler = Path("/mnt/filler").open("wb", buffering=0)
try:
    while True:
        filler.write(bytes(4096))
except OSError:
    pass
text = looked_up(directory)
assert "no space is left on its file system" in text
assert "segmentlog usage DIR" in text
assert "logs" in type_in("segmentlog usage DIR", directory)
assert "segmentlog retain DIR --server-properties FILE --purge` (or `--kafka-defaults`" in text
assert any("retention" in each.reason for each in segmentlog.preflight(directory))
type_in("segmentlog retain DIR --kafka-defaults --purge", directory)
assert not [each for each in segmentlog.preflight(directory) if each.has_harm]
print("started")
"""


def test_a_full_disk_is_named_and_freed() -> None:
    """A broker that finds no space for its checkpoints ends."""
    assert "started" == in_namespace(_FULL, CLUSTER).split()[-1]


def test_damaged_metadata_is_never_called_ready(directory: Path) -> None:
    """`recover` does not say that there is nothing to do; the logs are read without metadata."""
    for path in (directory / "__cluster_metadata-0").glob("*.checkpoint"):
        path.unlink()
    log = directory / "__cluster_metadata-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[2048:2560] = bytes(512)
    log.write_bytes(data)
    text = looked_up(directory)
    # The verdict of preflight and its first line; verify.
    assert text.count("put the metadata back before the start") == 2 + 14
    assert "or otherwise the directory may be removed" not in text
    assert "segmentlog restore DIR NEW-DIR" in text
    output = type_in("segmentlog recover DIR", directory, 1)
    assert "nothing to do" not in output
    assert 14 == output.count("not ready for a start")
    assert "orders" in type_in("segmentlog topics DIR", directory)


def test_a_log_that_the_cluster_expects_and_that_is_not_there_is_named(directory: Path) -> None:
    """A broker would begin an empty log without a word."""
    shutil.rmtree(directory / "orders-1")
    (step,) = [each for each in segmentlog.preflight(directory) if each.action == "missing"]
    assert ("orders", 1, str(directory / "orders-1")) == (step.topic, step.partition, step.path)
    assert "start-without-log" in looked_up(directory)
