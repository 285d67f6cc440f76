"""Compile the kernels ahead of the first query, by reading logs of one record."""

import importlib
import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import typer

from segmentlog.tools.arguments import OF_THE_MACHINE, command
from segmentlog.tools.progress import progress
from segmentlog.tools.text import json_fields, to_json

__all__ = ["compile_kernels", "names_of_kernels", "warmup"]

#: A segment of one batch of one record, with a header.
_SEGMENT = bytes.fromhex(
    "00000000000000000000003e00000000025e93538d0000000000000000018bcfe568000000018bcf"
    "e56800ffffffffffffffffffffffffffff0000000118000000026b02760202680278"
)
#: A compressed batch.
_COMPRESSED = bytes.fromhex(
    "00000000000000000000004e00000000021d6396900001000000000000018bcfe568000000018bcf"
    "e56800ffffffffffffffffffffffffffff000000011f8b08000000000002031360606060ca662a63"
    "0000a37fcfa609000000"
)
#: A batch in a transaction, and the transaction's commit marker.
_TRANSACTION = bytes.fromhex(
    "00000000000000000000003a0000000002c0a597380010000000000000018bcfe568000000018bcf"
    "e5680000000000000000010000000000000000000110000000026b02760000000000000000010000"
    "004200000000022f9f220c0030000000000000018bcfe568000000018bcfe5680000000000000000"
    "010000ffffffff000000012000000008000000010c00000000000000"
)
#: A compressed message of magic 1, and another that is not compressed.
_MESSAGES = bytes.fromhex(
    "000000000000000000000041a31d1dc101010000018bcfe56800ffffffff0000002b1f8b08000000"
    "0000040363608003094bb51e63462097b1fbfcd30c903063368828030096f6de1824000000000000"
    "00000000010000001839268c3301000000018bcfe56800000000016b0000000176"
)
_TIME = 1_700_000_000_000


def names_of_kernels() -> frozenset[str]:
    """``module.function`` of every kernel; empty if ``NUMBA_DISABLE_JIT`` is set."""
    from numba.core.dispatcher import Dispatcher

    import segmentlog.kernels as package

    modules = [each.name for each in pkgutil.iter_modules(package.__path__)]
    return frozenset(
        f"{module}.{name}"
        for module in modules
        for name, value in vars(importlib.import_module(f"{package.__name__}.{module}")).items()
        if isinstance(value, Dispatcher) and value.py_func.__module__.endswith(f".{module}")
    )


@command(
    OF_THE_MACHINE,
    "segmentlog warmup",
    "NUMBA_CACHE_DIR=/var/cache/segmentlog segmentlog warmup",
)
def warmup(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end.")
    ] = False,
) -> None:
    """Warm the cache of compiled kernels, so that the first query does not wait for the compiler.

    It takes up to a minute. Run it once for each machine, user and version of Python; in a
    container image, run it as the user that will read. The kernels are kept in segmentlog, below
    the user's cache directory (XDG_CACHE_HOME, or ~/.cache) or below NUMBA_CACHE_DIR, which nobody
    else may write to.
    """
    with progress("compiling kernels", len(names_of_kernels()), is_bytes=False) as bar:
        warmed = compile_kernels(bar.advance)
    if as_json:
        sys.stdout.write(to_json(json_fields(warmed)) + "\n")
        return
    for line in _lines(warmed):
        sys.stdout.write(line + "\n")


class WarmedCache(NamedTuple):
    """The cache of kernels after a warmup.

    Attributes
    ----------
    compiled : kernels that were compiled now.
    seconds : the time that this took.
    kernels : kernels in the cache.
    path : the directory of the cache; None if there is none.
    obstacle : the reason for which compiled kernels cannot be kept; None if they are kept.
    """

    compiled: int
    seconds: float
    kernels: int
    path: str | None
    obstacle: str | None


def _lines(warmed: WarmedCache) -> Iterator[str]:
    """The cache in words."""
    from segmentlog.kernel_cache import REMEDY

    if warmed.compiled:
        yield f"compiled {warmed.compiled} kernels in {warmed.seconds:.1f} s"
    if warmed.obstacle:
        yield f"the compiled kernels cannot be kept: {warmed.obstacle}; {REMEDY}"
    else:
        yield f"the cache is warm: {warmed.kernels} kernels, in {warmed.path}"


def compile_kernels(advance: Callable[[int], object] = bool) -> WarmedCache:
    """Read and write logs of every kind once, so that all kernels are compiled and kept.

    Parameters
    ----------
    advance : takes the number of `names_of_kernels` that are in the cache since the last call.
    """
    from segmentlog.kernel_cache import store_of

    store = store_of("segmentlog.kernels")
    before = store.names()
    cached = {_kernel_of(name) for name in before}

    def count(name: str) -> None:
        if _kernel_of(name) not in cached:
            cached.add(_kernel_of(name))
            advance(1)

    store.say_nothing()
    store.on_saved = count
    advance(len(cached))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="segmentlog-") as directory:
        _read(Path(directory))
        _write(Path(directory, "written"))
        _mend(Path(directory))
        _compact(Path(directory, "compacted"))
    seconds = time.perf_counter() - start
    if store.obstacle:
        return WarmedCache(_counts()[0], seconds, 0, None, store.obstacle)
    store.mark_warmed()
    names = store.names()
    return WarmedCache(len(names - before), seconds, len(names), str(store.path), None)


def _kernel_of(file: str) -> str:
    """``module.function`` of a file of the cache, which has a suffix for the signature."""
    return file.rpartition("-")[0]


def _read(directory: Path) -> None:
    """Scans, a look-up by time, a dump of a batch, a verification: all reads that call kernels."""
    from segmentlog.logs.log_directory import open_log_dir
    from segmentlog.records.one_batch import BatchReader
    from segmentlog.verification.verify_log import verify_log

    for number, segment in enumerate((_SEGMENT, _COMPRESSED, _MESSAGES, _TRANSACTION)):
        partition = directory / f"warmup-{number}"
        partition.mkdir()
        file = partition / f"{0:020d}.log"
        file.write_bytes(segment)
        log = open_log_dir(partition).log("warmup", number)
        log.scan().read_all()
        log.scan(include_headers=True).read_all()
        log.scan(isolation_level="read_committed").read_all()
        log.offset_for_timestamp(_TIME)
        list(verify_log(log, with_records=True, with_producers=True))
    list(BatchReader(str(file)).records(_SEGMENT, 0))


def _write(directory: Path) -> None:
    """Rows with and without headers to a log: partitions, batches, offsets, indexes."""
    import pyarrow as pa

    from segmentlog.model import Codec
    from segmentlog.stage.config import Producer, ProducerConfig
    from segmentlog.writes.writer import open_writer

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.table(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"v", None], pa.binary()),
            "partition": pa.array([None, 0], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None], headers),
        }
    )
    # Columns of Polars, and those of `segmentlog produce`, have bounds of 64 bits.
    wide = rows.set_column(0, "key", rows["key"].cast(pa.large_binary()))
    with open_writer(directory, "warmup") as writer:
        writer.append(rows)
        writer.append(rows.select(["key", "value"]))
        writer.append(wide)
    with open_writer(directory, "warmup", config=ProducerConfig(codec=Codec.LZ4)) as writer:
        writer.append(rows)
    for _ in range(2):
        with open_writer(directory, "warmup", producer=Producer(1, 0, 0)) as writer:
            writer.append(rows)
            writer.append_batches(_SEGMENT, 0)


def _mend(directory: Path) -> None:
    """Rebuild the indexes of a log, and find a damaged batch."""
    from segmentlog.errors import CorruptLogError
    from segmentlog.records.one_batch import BatchReader
    from segmentlog.recovery.reindex import reindex

    reindex(directory / "warmup-3")
    with suppress(CorruptLogError):
        list(BatchReader("damaged").records(_SEGMENT[:-1] + b"!", 0))


def _compact(directory: Path) -> None:
    """Compact a log whose batches are kept, cut, emptied and compressed again; erase a key."""
    import pyarrow as pa

    from segmentlog.compaction.compact import compact
    from segmentlog.compaction.erase import erase
    from segmentlog.model import Codec
    from segmentlog.stage.config import ProducerConfig
    from segmentlog.writes.writer import open_writer

    rows = pa.table({"key": [b"k", b"k", b"l"], "value": [b"v", b"v", None]})
    for codec in (Codec.NONE, Codec.LZ4):
        with open_writer(directory, "warmup", config=ProducerConfig(codec=codec)) as writer:
            writer.append(rows)
            writer.roll()
            writer.append(rows.slice(0, 1))
    (directory / "warmup-0" / f"{0:020d}.log").write_bytes(_TRANSACTION)
    compact(directory, settings={"cleanup.policy": "compact"})
    erase(directory, b"k")


def _counts() -> tuple[int, int]:
    """Kernels compiled now, and kernels loaded from the cache."""
    compiled = loaded = 0
    for kernel in _kernels():
        compiled += sum(kernel.stats.cache_misses.values())
        loaded += sum(kernel.stats.cache_hits.values())
    return compiled, loaded


def _kernels() -> Iterator[Any]:
    """Compiled functions of the modules that are loaded, each once."""
    seen: set[int] = set()
    modules = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("segmentlog.kernels.") and isinstance(module, ModuleType)
    ]
    for module in modules:
        for value in vars(module).values():
            if hasattr(value, "py_func") and hasattr(value, "stats") and id(value) not in seen:
                seen.add(id(value))
                yield value
