"""Seeds to mutate: logs of real brokers, and encoded batches of the shapes that these lack.

The inputs of the coverage-guided fuzzer are in one archive, because they are many and tiny.
"""

import hashlib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from segmentlog.testing.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from segmentlog.testing.legacy import encode_message, encode_wrapper, split_batches
from segmentlog.testing.reference import Record, encode_batch

GOLDEN = Path(__file__).parents[2] / "golden"

#: The batches of a log.
Seed = tuple[bytes, ...]

_T0 = 1_700_000_000_000
_MOST_BATCHES = 4  # of a golden log: most of the time should go into what differs
_MARKER_KEYS = {"abort": b"\0\0\0\0", "commit": b"\0\0\0\1"}


def golden_logs() -> Iterator[bytes]:
    """The ``.log`` files that brokers left."""
    for path in sorted(GOLDEN.rglob("*.log")):
        data = path.read_bytes()
        if data:
            yield data


def load_seeds() -> list[Seed]:
    """Each log as single batches, and as a whole."""
    logs = [
        tuple(batch for batch, _ in split_batches(data))[:_MOST_BATCHES] for data in golden_logs()
    ]
    logs += list(_encoded())
    singles = {batch: None for log in logs for batch in log}  # in order, unlike a set
    return [(batch,) for batch in singles] + [log for log in logs if len(log) > 1]


def _records(first: int, n: int, *, with_headers: bool = True) -> list[Record]:
    headers = ((b"h", b"v"), (b"", None), (b"\xff", b"x" * 20)) if with_headers else ()
    return [
        Record(
            first + i,
            _T0 + i * i * 1000,
            None if i % 4 == 3 else b"k" * i,
            None if i % 5 == 4 else b"v" * (7 * i),
            headers[: i % 4],
        )
        for i in range(n)
    ]


def _encoded() -> Iterator[Seed]:
    """Shapes that the golden logs lack, or have only once."""
    for codec in (NONE, GZIP, SNAPPY, LZ4, ZSTD):
        yield (
            encode_batch(_records(0, 6), codec=codec),
            encode_batch(_records(6, 2), codec=codec),
        )
        yield (encode_batch(_records(3, 3), codec=codec, attributes=8, max_timestamp_ms=_T0),)
        yield (encode_batch(_records(0, 25, with_headers=False), codec=codec),)
        yield (encode_batch([Record(2**40, -1, None, bytes(400))], codec=codec),)
    for key in _MARKER_KEYS.values():
        marker = Record(9, _T0, key, bytes(6))
        yield (encode_batch(_records(3, 6), attributes=16), encode_batch([marker], attributes=48))
    yield (encode_batch([], base_offset=4, last_offset=9), encode_batch(_records(10, 1)))
    yield (encode_batch(_records(0, 3), attributes=64, last_offset=70_000),)
    for magic in (0, 1):
        plain = [encode_message(each, magic=magic) for each in _records(0, 3)]
        for codec in (GZIP, SNAPPY, LZ4):
            yield (*plain, encode_wrapper(_records(3, 4), codec, magic=magic))
        yield (
            encode_message(Record(5, _T0, b"k", b"v"), magic=magic),
            encode_batch(_records(6, 2)),
        )
    yield (encode_wrapper(_records(7, 4), GZIP, append_time_ms=_T0),)


CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus.zip"

_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def read_corpus() -> list[bytes]:
    """All inputs, in the order of their checksums."""
    if not CORPUS.exists():
        return []
    with zipfile.ZipFile(CORPUS) as archive:
        return [archive.read(name) for name in archive.namelist()]


def write_corpus(inputs: Iterable[bytes]) -> None:
    """Replace the archive; equal inputs give equal bytes."""
    by_name = {hashlib.sha256(data).hexdigest()[:16]: data for data in inputs}
    with zipfile.ZipFile(CORPUS, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(by_name.items()):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), data, zipfile.ZIP_DEFLATED)
