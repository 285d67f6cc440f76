"""The place of a streaming query on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from checkpoints import write_checkpoint
from typer.testing import Result

import segmentlog

Run = Callable[..., Result]
EXAMPLE = Path(__file__).parents[3] / "examples" / "checkpoint"


def test_the_offsets_are_those_of_a_read(run: Run) -> None:
    """The output is a value of `startingOffsets`, and nothing else."""
    done = run("offsets", "--checkpoint", EXAMPLE)

    assert ('{"orders":{"0":222,"1":210,"2":164}}\n', "") == (done.stdout, done.stderr)


def test_json_names_the_batch(run: Run, tmp_path: Path) -> None:
    """A line has one source. The planned batch stands on standard error, too."""
    sources = '{"a":{"0":5,"10":6,"9":7}}\n17\n{"b":{"0":6}}'
    path = write_checkpoint(tmp_path / "c", {3: sources, 4: sources}, committed=3)
    done = run("offsets", "--checkpoint", path, "--json")
    first, second = map(json.loads, done.stdout.splitlines())

    assert {
        "source": "0",
        "batch": 3,
        "plannedBatch": 4,
        "offsets": {"a": {"0": 5, "9": 7, "10": 6}},
    } == first
    assert ("2", {"b": {"0": 6}}) == (second["source"], second["offsets"])
    assert "batch 4 is planned and not committed" in done.stderr
    assert "after batch 3, the last committed one" in done.stderr


def test_a_source_is_chosen(run: Run, tmp_path: Path) -> None:
    """With several sources, each line begins with its source, unless one is named."""
    sources = 'x:{"a":{"0":5}}\ny:{"b":{"0":6}}'
    path = write_checkpoint(tmp_path / "c", {0: sources}, committed=0, version=2)

    assert 'x: {"a":{"0":5}}\ny: {"b":{"0":6}}\n' == run("offsets", "--checkpoint", path).stdout
    chosen = run("offsets", "--checkpoint", path, "--source", "y")
    assert '{"b":{"0":6}}\n' == chosen.stdout
    refused = run("offsets", "--checkpoint", path, "--source", "z", status=2)
    assert "option '--source' is 'z'" in refused.stderr


def test_before_its_first_commit_a_query_is_where_it_begins(run: Run, tmp_path: Path) -> None:
    """The note says whether a batch is planned."""
    initial = {"0": b'\0v1\n{"a":{"0":5}}'}
    path = write_checkpoint(tmp_path / "c", {}, initial=initial)
    done = run("offsets", "--checkpoint", path)

    assert '{"a":{"0":5}}\n' == done.stdout
    assert "no batch is planned yet" in done.stderr
    planned = write_checkpoint(tmp_path / "p", {0: '{"a":{"0":9}}'}, initial=initial)
    done = run("offsets", "--checkpoint", planned)
    assert '{"a":{"0":5}}\n' == done.stdout
    assert "batch 0 is planned and not committed" in done.stderr
    assert "the offsets are those before it" in done.stderr


def test_the_lag_of_each_partition(run: Run, example_data: str) -> None:
    """The lag is the end of the log less the offset."""
    done = run("offsets", "--checkpoint", EXAMPLE, example_data)
    rows = [line.split() for line in done.stdout.splitlines()]

    assert ["topic", "partition", "offset", "start", "end", "lag"] == rows[0]
    assert ["orders", "0", "222", "0", "335", "113"] == rows[1]
    assert 4 == len(rows)
    assert "" == done.stderr


def test_partitions_that_a_query_could_not_continue(
    run: Run, tmp_path: Path, example_data: str
) -> None:
    """A missing partition, and an offset beyond the end, are problems; a new partition is not."""
    sources = '{"orders":{"0":400,"1":-1,"5":3,"2":-2},"customers":{},"payments":{"0":0}}'
    path = write_checkpoint(tmp_path / "c", {0: sources}, committed=0)
    done = run("offsets", "--checkpoint", path, example_data, "--json", status=1)
    found = {
        f"{row['topic']}-{row['partition']}": row
        for row in map(json.loads, done.stdout.splitlines())
    }

    assert (-65, "offset 400 is not written yet: the log holds [0, 335)") == (
        found["orders-0"]["lag"],
        found["orders-0"]["problem"],
    )
    assert (0, None) == (found["orders-1"]["lag"], found["orders-1"]["problem"])
    assert (248, None) == (found["orders-2"]["lag"], found["orders-2"]["problem"])
    assert "the directory does not contain it" in found["orders-5"]["problem"]
    table = run("offsets", "--checkpoint", path, example_data, status=1)
    assert "orders-5: the checkpoint names the partition" in table.stderr
    assert "5       3      -    -    -" in table.stdout


def test_offsets_below_the_log_start_are_gone(run: Run, tmp_path: Path) -> None:
    """Retention has removed what the query has yet to read."""
    logs = tmp_path / "logs"
    with segmentlog.open_writer(logs, "a", num_partitions=2) as writer:
        writer.append(
            pa.table({"value": [b"x"] * 10, "partition": pa.array([0] * 10, pa.int32())})
        )
    segmentlog.delete_records(logs, "a", 0, offset=7)
    path = write_checkpoint(tmp_path / "c", {0: '{"a":{"0":5}}'}, committed=0)
    done = run("offsets", "--checkpoint", path, logs, status=1)

    assert "a-0: 2 offsets from 5 on are gone: the log holds [7, 10)" in done.stderr
    assert ["a", "1", "-", "0", "0", "0"] == done.stdout.splitlines()[2].split()


def test_a_topic_that_was_created_again_has_no_lag(run: Run, tmp_path: Path) -> None:
    """The offsets of the checkpoint are those of the topic whose id it has."""
    with segmentlog.open_writer(tmp_path / "logs", "t", num_partitions=1) as writer:
        writer.append(pa.table({"value": ["a", "b"]}))
    now = segmentlog.open_log_dir(tmp_path / "logs").log("t", 0).topic_id
    for then, is_same in ((now, True), ("AAAAAAAAAAAAAAAAAAAAAQ", False)):
        sources = json.dumps({"t": {"0": 1}, f"t@{then}": {}})
        path = write_checkpoint(tmp_path / then, {0: sources}, committed=0)
        options = "--checkpoint", path, tmp_path / "logs", "--json"
        row = json.loads(run("offsets", *options, status=0 if is_same else 1).stdout)
        problem = f"its topic was deleted and created again (id {now}, not {then})"
        assert (1, None if is_same else problem) == (row["lag"], row["problem"])
        shown = run("offsets", "--checkpoint", path).stdout
        assert {"t": {"0": 1}, f"t@{then}": {}} == json.loads(shown)
    assert {("t", 0): 1} == segmentlog.checkpoint_offsets(path)


def test_errors_are_one_line(run: Run, tmp_path: Path, example_data: str) -> None:
    """The message names the path and a remedy."""
    assert "is not a checkpoint" in run("offsets", "--checkpoint", example_data, status=2).stderr
    path = write_checkpoint(tmp_path / "c", {0: '{"a":'}, committed=0)
    assert "line 3: expected JSON" in run("offsets", "--checkpoint", path, status=2).stderr
