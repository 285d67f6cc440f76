"""Copies of partitions on the command line."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

from broker_copies import broker, killed_in_sequence
from coordinator_logs import Coordinator, framed
from typer.testing import Result

Run = Callable[..., Result]


def test_the_table_shows_where_copies_differ(run: Run, tmp_path: Path) -> None:
    """The exit status is 1, because two copies have records that the log lacks."""
    shown = run("replicas", *killed_in_sequence(tmp_path), status=1).stdout.splitlines()
    assert shown[0].split() == [
        "topic",
        "partition",
        "broker",
        "epoch",
        "start",
        "end",
        "high",
        "watermark",
    ]
    assert shown[1].split()[:7] == ["t", "0", "1", "0", "0", "6", "5"]
    assert "diverges at 3: 3 records, " in shown[1]
    assert shown[1].endswith(", acknowledged")
    assert "diverges at 4: 1 records, " in shown[2]
    assert "the log: its last leader epoch is 2" in shown[3]


def test_json_has_a_line_for_each_partition(run: Run, tmp_path: Path) -> None:
    """A script finds the log by a flag."""
    done = run("replicas", *killed_in_sequence(tmp_path), "--json", status=1)
    (found,) = map(json.loads, done.stdout.splitlines())
    assert ("t", 0) == (found["topic"], found["partition"])
    assert [False, False, True] == [each["is_log"] for each in found["replicas"]]
    assert [3, 4, None] == [each["diverges_at"] for each in found["replicas"]]


def test_deleted_topics_are_shown_on_request(run: Run, tmp_path: Path) -> None:
    """The metadata has deleted the topic, and a broker still has its log."""
    path, topic_id = broker(tmp_path, 1, [(0, "abc")]), uuid.UUID(int=1)
    log = Coordinator()
    for kind, fields in ((2, {"name": "t", "topic_id": topic_id}), (9, {"topic_id": topic_id})):
        log.add(framed("__cluster_metadata", kind, fields))
    log.write(path, 0, "__cluster_metadata")

    for options, topics in (((), []), (("--include-deleted-topics",), ["t"])):
        shown = run("replicas", path, *options).stdout.splitlines()
        assert topics == [line.split()[0] for line in shown[1:]]
        run("mirror", path, tmp_path / "to", *options)
        assert [f"{each}-0" for each in topics] == [
            each.name for each in (tmp_path / "to").glob("*-0")
        ]


def test_copies_that_agree(run: Run, tmp_path: Path) -> None:
    """A shorter copy is no problem."""
    paths = [broker(tmp_path, 1, [(0, "abc")]), broker(tmp_path, 2, [(0, "ab")])]
    done = run("replicas", *paths)
    assert "shorter" in done.stdout
    refused = run("replicas", *paths, "--topic", "u", status=2)
    assert "'u'" in refused.stderr
