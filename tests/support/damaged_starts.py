"""Each file that a starting broker reads, damaged in each way, in a directory of a broker.

The tests of the preflight ask for a prediction; the tests with brokers also start one.
"""

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from segmentlog import StartAction, StartStep
from segmentlog.testing.reference import Record, encode_batch

#: Files of a log directory with the topics `orders` and `invoices`; the last match is damaged.
FILES = (
    "meta.properties",
    "bootstrap.checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    "orders-1/partition.metadata",
    "orders-1/leader-epoch-checkpoint",
    "orders-1/*.log",
    "orders-1/*.index",
    "orders-1/*.timeindex",
    "orders-1/*.snapshot",
    "invoices-0/*.txnindex",
    "__cluster_metadata-0/*.log",
    "__cluster_metadata-0/*.index",
    "__cluster_metadata-0/*.timeindex",
    "__cluster_metadata-0/*.snapshot",
    "__cluster_metadata-0/*.checkpoint",
    "__cluster_metadata-0/leader-epoch-checkpoint",
    "__cluster_metadata-0/partition.metadata",
    "__cluster_metadata-0/quorum-state",
)

DAMAGES = ("missing", "empty", "nul", "garbage", "cut", "foreign", "older")

_ALL_BUT_OLD = ("empty", "nul", "garbage", "cut", "foreign")

#: The outcomes with Kafka 4.3.1, where it is not "starts"; `tests/interop` asks brokers.
OUTCOMES = {
    ("meta.properties", "refused"): ("missing", "empty", "nul", "garbage", "cut"),
    ("bootstrap.checkpoint", "refused"): (*_ALL_BUT_OLD, "older"),
    ("recovery-point-offset-checkpoint", "refused"): ("nul", "garbage", "cut"),
    ("log-start-offset-checkpoint", "refused"): ("nul", "garbage"),
    ("log-start-offset-checkpoint", "emptied"): ("foreign",),
    ("replication-offset-checkpoint", "refused"): ("nul", "garbage", "cut"),
    ("cleaner-offset-checkpoint", "refused"): ("nul", "garbage"),
    ("orders-1/partition.metadata", "refused"): ("empty", "nul", "garbage", "cut"),
    ("orders-1/partition.metadata", "stray"): ("missing", "foreign"),
    ("orders-1/leader-epoch-checkpoint", "refused"): ("nul", "garbage", "cut"),
    ("orders-1/*.log", "refused"): ("nul",),  # if the directory was cleanly stopped
    ("invoices-0/*.txnindex", "refused"): ("garbage",),
    ("__cluster_metadata-0/*.log", "emptied"): ("missing", *_ALL_BUT_OLD),
    ("__cluster_metadata-0/*.checkpoint", "refused"): _ALL_BUT_OLD,
    ("__cluster_metadata-0/*.checkpoint", "stray"): ("older",),
    ("__cluster_metadata-0/leader-epoch-checkpoint", "refused"): ("nul", "garbage", "cut"),
    ("__cluster_metadata-0/leader-epoch-checkpoint", "emptied"): ("foreign",),
    ("__cluster_metadata-0/partition.metadata", "refused"): _ALL_BUT_OLD,
    ("__cluster_metadata-0/quorum-state", "refused"): ("empty", "nul", "garbage", "cut"),
}

_GARBAGE = bytes(range(1, 256)) * 2
_FOREIGN_ID = "AAAAAAAAAAAAAAAAAAABkA"


class Case(NamedTuple):
    """A file of a directory, its damage, and whether the directory was cleanly stopped."""

    file: str
    damage: str
    is_clean: bool

    @property
    def name(self) -> str:
        """The case in the name of a test."""
        return f"{self.file}, {self.damage}, {'clean' if self.is_clean else 'unclean'}"


def cases() -> Iterator[Case]:
    """All of them."""
    for file in FILES:
        for each in DAMAGES:
            for is_clean in (True, False):
                yield Case(file, each, is_clean)


def several(seed: int) -> list[Case]:
    """Damages of two to four files of one directory."""
    rng = random.Random(seed)
    is_clean = rng.random() < 0.5
    files = rng.sample(FILES, rng.randint(2, 4))
    return [Case(each, rng.choice(DAMAGES), is_clean) for each in files]


def recorded(case: Case) -> str:
    """The outcome of a start of Kafka 4.3.1 with the directory ``examples/cluster``."""
    if case.file == "orders-1/*.log" and not case.is_clean:
        return "starts"
    for (file, outcome), damages in OUTCOMES.items():
        if file == case.file and case.damage in damages:
            return outcome
    return "starts"


def predicted(steps: Collection[StartStep]) -> str:
    """The outcome of a start, by its steps; the worst counts."""
    actions = {each.action for each in steps}
    for outcome, worst in _WORST.items():
        if actions & worst:
            return outcome
    return "starts"


_WORST = {
    "refused": {StartAction.REFUSE, StartAction.OFFLINE},
    "stray": {StartAction.STRAY},
    "emptied": {StartAction.EMPTY},
}


def second_disk(first: Path, *names: str) -> Path:
    """A second log directory of the broker, with some of its partitions."""
    second = first.parent / "more logs"
    second.mkdir()
    for name in names:
        shutil.move(first / name, second / name)
    for path in [each for each in first.iterdir() if each.is_file()]:
        shutil.copy(path, second)
    ids = second / "meta.properties"
    own = "directory.id=er5aWuEISeKNH6Jd5_NPlA"
    ids.write_text(re.sub("directory.id=.*", own, ids.read_text()))
    return second


LOG = "00000000000000000000.log"
FUTURE = "orders-0.0123456789abcdef0123456789abcdef-future"


class _Futures:
    """Changes of two log directories: copies that were on their way to one of them."""

    @staticmethod
    def beside_the_log(first: Path, _: Path) -> None:
        shutil.copytree(first / "orders-0", first / FUTURE)

    @staticmethod
    def of_another_topic(first: Path, second: Path) -> None:
        _Futures.beside_the_log(first, second)
        shutil.copy(first / "invoices-1" / "partition.metadata", first / FUTURE)

    @staticmethod
    def without_a_topic_id(first: Path, second: Path) -> None:
        _Futures.beside_the_log(first, second)
        (first / FUTURE / "partition.metadata").unlink()

    @staticmethod
    def of_a_deleted_topic(first: Path, second: Path) -> None:
        _Futures.beside_the_log(first, second)
        path = first / FUTURE / "partition.metadata"
        path.write_text(f"version: 0\ntopic_id: {_FOREIGN_ID}")

    @staticmethod
    def beside_a_stray_log(first: Path, second: Path) -> None:
        _Futures.beside_the_log(first, second)
        (first / "orders-0" / "partition.metadata").unlink()

    @staticmethod
    def without_the_log(first: Path, _: Path) -> None:
        (first / "orders-0").rename(first / FUTURE)

    @staticmethod
    def log_in_the_other_directory(first: Path, second: Path) -> None:
        _Futures.beside_the_log(first, second)
        (first / "orders-0").rename(second / "orders-0")

    @staticmethod
    def longer_log_in_the_other_directory(first: Path, second: Path) -> None:
        _Futures.log_in_the_other_directory(first, second)
        for each in (first / FUTURE).glob("0*"):
            each.unlink()
        (first / FUTURE / LOG).write_bytes(encode_batch([Record(0, 0, b"k", b"v")]))

    @staticmethod
    def in_the_other_directory(first: Path, second: Path) -> None:
        shutil.copytree(first / "orders-0", second / FUTURE)

    @staticmethod
    def in_the_other_directory_without_the_log(first: Path, second: Path) -> None:
        (first / "orders-0").rename(second / FUTURE)

    @staticmethod
    def both_in_the_other_directory(first: Path, second: Path) -> None:
        _Futures.in_the_other_directory(first, second)
        (first / "orders-0").rename(second / "orders-0")


#: The changes, and the steps of Kafka 4.3.1: the cluster assigns the log to the first directory.
FUTURES: dict[str, tuple[Callable[[Path, Path], None], list[tuple[StartAction, str]]]] = {
    each.__name__.replace("_", " "): (each, expected)
    for each, expected in (
        (_Futures.beside_the_log, [(StartAction.REFUSE, FUTURE)]),
        (
            _Futures.of_another_topic,
            [(StartAction.REFUSE, FUTURE), (StartAction.UNSERVED, "partition.metadata")],
        ),
        (_Futures.without_a_topic_id, [(StartAction.STRAY, "partition.metadata")]),
        (_Futures.of_a_deleted_topic, [(StartAction.STRAY, "partition.metadata")]),
        (_Futures.beside_a_stray_log, [(StartAction.STRAY, "partition.metadata")]),
        (_Futures.without_the_log, []),
        (_Futures.log_in_the_other_directory, [(StartAction.DELETE, "orders-0")]),
        (_Futures.longer_log_in_the_other_directory, [(StartAction.EMPTY, "orders-0")]),
        (_Futures.in_the_other_directory, []),
        (_Futures.in_the_other_directory_without_the_log, [(StartAction.EMPTY, FUTURE)]),
        (_Futures.both_in_the_other_directory, []),
    )
}


#: Files of a log that are links into nowhere, or directories.
CLOSED = [
    f".{kind}, {what}"
    for kind in ("index", "timeindex", "txnindex", "log")
    for what in ("dangling", "directory")
]


def close(directory: Path, what: str) -> Path:
    """Put one of these in place of a file; returns its path."""
    suffix, kind = what.split(", ")
    path = (directory / "orders-0" / LOG).with_suffix(suffix)
    path.unlink(missing_ok=True)
    if kind == "dangling":
        path.symlink_to(directory / "nowhere" / path.name)
    else:
        path.mkdir()
    return path


def filled(version: str, directory: Path) -> Path:
    """A log directory that a broker of the version has filled and stopped."""
    import pytest
    from kafka_here import ArtifactsError, Broker, JavaClient, kafka_jars
    from kafka_here.artifacts import kept
    from kafka_here.java import Outgoing

    try:
        kafka_jars(version)
    except ArtifactsError as error:
        pytest.skip(f"Kafka {version} cannot be had: {error}")

    def make(into: Path) -> None:
        broker = Broker(directory / "filling", version)
        with broker, JavaClient(broker) as client:
            client.create_topic("orders", 3)
            client.create_topic("invoices", 2)
            rows = [Outgoing(b"%d" % i, b"v", (), None, i % 3) for i in range(60)]
            client.produce("orders", rows)
            few = [Outgoing(b"%d" % i, b"v", (), None, 0) for i in range(3)]
            client.produce("invoices", few, transactions=("commit", "abort"))
        writable_copy(broker.log_dir, into / "logs")

    return kept(f"started-{version}", make) / "logs"


def writable_copy(source: Path, into: Path) -> Path:
    """A copy of a directory whose files may be changed."""
    shutil.copytree(source, into, dirs_exist_ok=True)
    for root, _, names in os.walk(into):
        for name in names:
            (Path(root) / name).chmod(0o644)
    return into


def damage(directory: Path, case: Case) -> Path:
    """Damage a file of a log directory; returns its path.

    A file that this broker has not written is made with the bytes of the damage.
    """
    if not case.is_clean:
        (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)
    path = _path(directory, case.file)
    before = path.read_bytes() if path.exists() else b""
    size = max(len(before), 32)
    match case.damage:
        case "missing":
            path.unlink(missing_ok=True)
        case "empty":
            path.write_bytes(b"")
        case "nul":
            path.write_bytes(bytes(size))
        case "garbage":
            path.write_bytes((_GARBAGE * (size // len(_GARBAGE) + 1))[:size])
        case "cut":
            path.write_bytes(before[: len(before) * 2 // 3])
        case "foreign":
            path.write_bytes(_foreign(directory, path, before))
        case "older":
            path.write_bytes(_older(path, before))
    return path


def _path(directory: Path, file: str) -> Path:
    found = sorted(directory.glob(file))
    if found:
        return found[-1]
    return directory / file.replace("*", "00000000000000000000")


def _foreign(directory: Path, path: Path, before: bytes) -> bytes:
    """A sound file of the same kind from another cluster, or from another partition."""
    name = path.name
    text = before.decode(errors="replace")
    if name == "meta.properties":
        return re.sub(r"cluster.id=.*", "cluster.id=anotherClusterAbcdefgh", text).encode()
    if name == "partition.metadata":
        return f"version: 0\ntopic_id: {_FOREIGN_ID}".encode()
    if name == "leader-epoch-checkpoint":
        return b"0\n2\n0 0\n9 5000\n"
    if name.endswith("-offset-checkpoint"):
        return b"0\n2\norders 1 500\nelsewhere 0 7\n"
    if name == "quorum-state":
        return re.sub(r'"leaderEpoch":\d+', '"leaderEpoch":99', text).encode()
    other = {"orders-1": "invoices-0", "invoices-0": "orders-0"}
    folder = directory / other.get(path.parent.name, "invoices-0")
    found = sorted(folder.glob("*" + path.suffix))
    return found[-1].read_bytes() if found else _GARBAGE[:24]


def _older(path: Path, before: bytes) -> bytes:
    """The file as an earlier moment has left it."""
    name = path.name
    text = before.decode(errors="replace")
    if name == "meta.properties":
        return re.sub(r"directory.id=.*\n", "", text).encode()
    if name == "partition.metadata":
        return text.replace("version: 0", "version: 1").encode()
    if name == "leader-epoch-checkpoint":
        return b"0\n0\n"
    if name.endswith("-offset-checkpoint"):
        return re.sub(r"(?m)^(\S+ \d+) \d+$", r"\1 0", text).encode()
    if name == "quorum-state":
        return re.sub(r'"leaderEpoch":\d+', '"leaderEpoch":0', text).encode()
    if path.suffix == ".log":
        return before[: _batch_ends(before)[-2]] if len(_batch_ends(before)) > 1 else b""
    if path.suffix == ".checkpoint":
        older = sorted(path.parent.glob("*.checkpoint"))[:-1]
        return older[-1].read_bytes() if older else before[: _batch_ends(before)[0]]
    return before[: len(before) // 24 * 12]


def _batch_ends(data: bytes) -> list[int]:
    """Positions after each batch."""
    ends, position = [], 0
    while position + 12 <= len(data):
        length = int.from_bytes(data[position + 8 : position + 12], "big")
        if length <= 0:
            break
        position += 12 + length
        ends.append(position)
    return ends or [0]


#: Changes of the ids of a directory: a pattern, what is put in its place, and whether a broker
#: ends.
IDS = {
    "a blank after the node id": (r"(node.id=.*)", r"\1 ", True),
    "a blank after the directory id": (r"(directory.id=.*)", r"\1 ", True),
    "a blank after the version": (r"(version=.*)", r"\1 ", False),
    "a tab after the version": (r"(version=.*)", "\\1\t", False),
    "a continued line": (r"cluster.id=(....)", "cluster.id=\\1\\\\\n   ", False),
    "an empty cluster id": (r"cluster.id=.*", "cluster.id=", False),
    "no cluster id": (r"cluster.id=.*\n?", "", True),
    "an empty directory id": (r"directory.id=.*", "directory.id=", True),
    "no directory id": (r"directory.id=.*\n", "", False),
    "an empty node id": (r"node.id=.*", "node.id=", True),
    "a plus": (r"node.id=", "node.id=+", False),
    "no version": (r"version=.*\n", "", True),
    "a malformed escape": (r"^", r"x=\\u12\n", True),
    "an escape": (r"node.id=1", r"node.id=\\u0031", False),
    "colons": (r"=", ":", False),
}


def change(**fields: object) -> Callable[[dict[str, object]], object]:
    """Set fields of the last election; None removes one."""

    def make(found: dict[str, object]) -> None:
        for name, value in fields.items():
            found.pop(name, None)
            if value is not None:
                found[name] = value

    return make


#: Changes of the last election, and whether a node ends.
ELECTIONS = {
    "no leader": (change(leaderId=None), True),
    "no epoch": (change(leaderEpoch=None), True),
    "no voters": (change(currentVoters=None), True),
    "an unknown version": (change(data_version=9), True),
    "a version below 0": (change(data_version=-1), True),
    "a word for the version": (change(data_version="x"), False),
    "a word for the epoch": (change(leaderEpoch="3"), True),
    "a fraction": (change(leaderEpoch=1.5), True),
    "an epoch that is too large": (change(leaderEpoch=2**40), True),
    "another field": (change(more=1), False),
    "another leader": (change(leaderId=5), False),
}


#: A checkpoint of offsets, and whether a broker reads it, survives its words, or fails.
CHECKPOINTS = {
    b"": "read",
    b"0\n1\norders 0 5\n": "read",
    b"0\n1\norders 0 5": "read",
    b"0\r\n1\r\norders 0 5\r\n": "read",
    b"0\r1\rorders 0 5\r": "read",
    b"0\n1\norders 0 5 \n": "read",
    b"0\n1\norders\t 0\x0b5\n": "read",
    b"+0\n1\norders 0 +5\n": "read",
    b"0\n1\norders 0 -5\n": "read",
    b"0\n2\norders 0 5\norders 0 6\n": "read",
    b"0 \n1\norders 0 5\n": "fails",
    b" 0\n1\norders 0 5\n": "fails",
    b"0\n1 \norders 0 5\n": "fails",
    b"0\n1\n orders 0 5\n": "fails",
    b"0\n1\n\norders 0 5\n": "fails",
    b"0\n1\norders 0 5\n\n": "fails",
    b"0\n1\norders 0 5\nmore\n": "fails",
    b"0\n2\norders 0 5\n": "fails",
    b"1\n1\norders 0 5\n": "fails",
    b"x\n1\norders 0 5\n": "fails",
    b"0\nx\norders 0 5\n": "fails",
    "0\n1\norders\u00a00 5\n".encode(): "fails",
    b"0\n1\norders 0 \xb57\n": "fails",
    b"0\n-1\norders 0 5\n": "survives",
    b"0\n1\norders x 5\n": "survives",
    b"0\n1\norders 0 x\n": "survives",
    b"0\n1\norders 0 99999999999999999999\n": "survives",
    b"0\n1\norders 4294967296 5\n": "survives",
}


def java_damages(part: str) -> dict[str, Callable[[Path], object]]:
    """Changes of a log directory by their names: of ids, of the election or of a checkpoint."""

    def of_ids(old: str, new: str) -> Callable[[Path], object]:
        def make(directory: Path) -> None:
            path = directory / "meta.properties"
            path.write_text(re.sub(old, new, path.read_text()))

        return make

    def of_election(edit: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
        def make(directory: Path) -> None:
            path = directory / "__cluster_metadata-0" / "quorum-state"
            found = json.loads(path.read_text())
            edit(found)
            path.write_text(json.dumps(found))

        return make

    def of_checkpoint(data: bytes) -> Callable[[Path], object]:
        return lambda to: (to / "recovery-point-offset-checkpoint").write_bytes(data)

    match part:
        case "ids":
            return {name: of_ids(old, new) for name, (old, new, _) in IDS.items()}
        case "elections":
            return {name: of_election(edit) for name, (edit, _) in ELECTIONS.items()}
    return {f"checkpoint {i}": of_checkpoint(data) for i, data in enumerate(CHECKPOINTS)}
