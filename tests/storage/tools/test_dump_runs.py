"""A dump to columns takes batches in runs, and has what it has when it takes them one by one."""

import random
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest
from fuzzing.mutate import mutant
from fuzzing.seeds import load_seeds

from segmentlog.format.kernels.memory import Int64s
from segmentlog.testing.codecs import NONE, ZSTD
from segmentlog.testing.damage import garble_records
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools import walk
from segmentlog.tools.dump import dump_paths
from segmentlog.tools.failures import Failed
from segmentlog.tools.records import Place
from segmentlog.tools.sinks import ColumnSink, CountingSink, EnoughError, Format
from segmentlog.tools.walk import Selection

GOLDEN = Path(__file__).parents[2] / "golden"
T0 = 1_700_000_000_000
FIRST = f"{0:020d}.log"


Dumped: TypeAlias = tuple[pa.Table, bool, str]


class OneByOne(ColumnSink):
    """Takes no runs."""

    run = None


def dumped(
    path: Path,
    selection: Selection,
    capsys: pytest.CaptureFixture[str],
    limit: int | None = None,
) -> list[Dumped]:
    """Rows and messages, with runs and without."""
    results = list[Dumped]()
    for kind in (ColumnSink, OneByOne):
        buffer = pa.BufferOutputStream()
        sink = kind(buffer, Format.ARROW, with_records=True)
        count = CountingSink(sink, limit, with_records=True)
        with suppress(EnoughError):
            dump_paths([str(path)], count, selection, with_records=True, failed=Failed())
        sink.close()
        found = pa.ipc.open_stream(buffer.getvalue()).read_all().combine_chunks()
        assert count.n_records == found.num_rows
        results.append((found, count.is_damaged, capsys.readouterr().err))
    return results


@pytest.mark.parametrize("seed", range(0, 400, 50))
def test_damaged_files(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Mutants of all formats, codecs and shapes, and random parts of them."""
    seeds = load_seeds()
    for number in range(seed, seed + 50):
        draw = random.Random(number)
        monkeypatch.setattr(walk, "_FEW_BATCHES", draw.choice([1, 2, 64]))
        data = mutant(seeds, draw).data
        if draw.random() < 0.5:
            data = mutant(seeds, draw).data + data
        (tmp_path / FIRST).write_bytes(data)
        first, time = draw.randrange(12), T0 + draw.randrange(40_000)
        selection = draw.choice(
            [
                Selection(),
                Selection.of(first, None, None, None),
                Selection.of(None, first, None, None),
                Selection.of(None, None, time, time + 20_000),
                Selection(key=b"kk"),
            ]
        )
        in_runs, one_by_one = dumped(tmp_path / FIRST, selection, capsys)

        assert one_by_one == in_runs, number


@pytest.mark.parametrize("name", ["kafka-2.8.2", "kafka-3.9.2", "kafka-4.3.1"])
@pytest.mark.parametrize("limit", [None, 40])
def test_directories_of_brokers(
    capsys: pytest.CaptureFixture[str], name: str, limit: int | None
) -> None:
    """They have transactions, compacted logs, Kafka's own topics and every codec."""
    in_runs, one_by_one = dumped(GOLDEN / name, Selection(), capsys, limit)

    assert one_by_one == in_runs


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_a_bad_batch_among_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, codec: int
) -> None:
    """Records around it come many at once, and those of the batches after it one by one."""
    calls = list[int]()
    take = ColumnSink.run

    def counting(self: ColumnSink, place: Place, headers: Int64s, records: pa.RecordBatch) -> None:
        calls.append(records.num_rows)
        take(self, place, headers, records)

    monkeypatch.setattr(ColumnSink, "run", counting)
    batches = [
        encode_batch(
            [Record(10 * i + j, T0 + i, b"k%d" % i, b"v%d" % j) for j in range(10)],
            codec=codec,
            producer=(i, 0, 0),
        )
        for i in range(1000)
    ]
    (tmp_path / FIRST).write_bytes(b"".join(batches))
    garble_records(700)(tmp_path / FIRST)
    in_runs, one_by_one = dumped(tmp_path / FIRST, Selection(), capsys)

    assert one_by_one == in_runs
    assert [7000] == calls
    found, is_damaged, said = in_runs
    assert [*range(7000), *range(7010, 10_000)] == found["offset"].to_pylist()
    assert [each // 10 for each in found["offset"].to_pylist()] == found["producerId"].to_pylist()
    assert is_damaged
    assert 1 == said.count("is not valid")
