"""Random requests of every API and version, whole and spoiled: each is answered or cut off.

``SERVE_FUZZ_SECONDS`` and ``SERVE_FUZZ_SEED`` choose the time, and which requests.
"""

import dataclasses
import os
import random
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from kafka_protocol import RawClient, consume
from kio.index import load_request_schema
from kio.serial import entity_writer

from segmentlog.serving.apis import APIS
from segmentlog.serving.claimed import check_claims, parts_of
from segmentlog.serving.wire import Parts, entity
from segmentlog.testing.kafka_log import KafkaLog

_SECONDS = float(os.environ.get("SERVE_FUZZ_SECONDS", "600"))
_SEED = int(os.environ.get("SERVE_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)

_FETCH, _JOIN, _SYNC, _PRODUCE = 1, 11, 14, 0
_WAITS = {_FETCH, _JOIN, _SYNC}
_LEAST_KIO = {_PRODUCE: 3}  # earlier versions are announced alone
_STRINGS = [
    "",
    "t",
    "paid",
    "g",
    "g2",
    "raw",
    "range",
    "consumer",
    "__consumer_offsets",
    "é" * 300,
]
_MOST_GROWTH_KB = 60 << 10


def _integer(rng: random.Random, bits: int, *, signed: bool = True) -> int:
    most = (1 << (bits - signed)) - 1
    least = -most - 1 if signed else 0
    around = [0, 1, 2, 3, 5, 100, most, *([least, -1, -2, -3, -4, -5] if signed else [])]
    return rng.choice([*around, *around, rng.randint(least, most)])


def _plain(rng: random.Random, name: str) -> Any:
    """A value of one of Kafka's types, as `entity` takes it."""
    if name.startswith(("int", "uint")):
        return _integer(rng, int(name.lstrip("uint")), signed=name[0] == "i")
    if name.startswith("timedelta"):
        return rng.choice([0, 1, 10, 100, 6_000, -1, 1 << 30])
    made = {
        "string": lambda: rng.choice(_STRINGS),
        "bytes": lambda: rng.randbytes(rng.choice([0, 1, 20, 5_000])),
        "records": lambda: rng.randbytes(rng.choice([0, 1, 20, 5_000])),
        "bool": lambda: rng.random() < 0.5,
        "float64": rng.random,
        "uuid": lambda: uuid.UUID(int=rng.getrandbits(128)),
        "error_code": lambda: 0,
    }
    return made[name]() if name in made else 0


def _values(rng: random.Random, kind: Any) -> dict[str, Any]:
    """Random values of an entity, of which some keep their defaults."""
    found: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        if rng.random() < 0.15:
            continue
        inner, is_array, is_nullable = parts_of(each.type)
        name = each.metadata.get("kafka_type", "")
        if is_nullable and rng.random() < 0.2:
            found[each.name] = None
        elif inner is not None and is_array:
            found[each.name] = [_values(rng, inner) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
        elif inner is not None:
            found[each.name] = _values(rng, inner)
        elif is_array:
            found[each.name] = [_plain(rng, name) for _ in range(rng.choice([0, 1, 1, 2, 9]))]
        else:
            found[each.name] = _plain(rng, name)
    return found


def _spoiled(rng: random.Random, data: bytearray) -> bytearray:
    """Changed, cut, lengthened and doubled bytes; key and version stay."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(8, len(data)) if len(data) > 8 else 0
        kind = rng.randrange(4)
        if kind == 0 or at < 8:
            data += rng.randbytes(rng.randrange(9))
        elif kind == 1:
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 2:
            del data[at : at + rng.randrange(9)]
        else:
            data[at:at] = data[at : at + rng.randrange(40)]
    return data


def test_whole_requests_claim_what_they_have() -> None:
    """Of every API and version; one byte less, and an array of billions, are seen."""
    rng = random.Random(72)
    for key, api in APIS.items():
        for version in range(max(api.least, _LEAST_KIO.get(key, 0)), api.most + 1):
            kind = load_request_schema(key, version)
            for _ in range(20):
                parts: Any = Parts()
                try:
                    entity_writer(kind)(parts, entity(kind, _values(rng, kind)))
                except Exception:  # noqa: BLE001 - a value that this version cannot say
                    continue
                data = bytes(parts.parts[0])
                check_claims(kind, data, 0)
                if data:
                    with pytest.raises((ValueError, IndexError)):
                        check_claims(kind, data[:-1], 0)


def _ask(rng: random.Random, client: RawClient) -> None:
    """Send a request; raises `ConnectionError` if it is cut off."""
    key = rng.choice([*APIS])
    version = rng.randint(max(APIS[key].least, _LEAST_KIO.get(key, 0)), APIS[key].most)
    values = _values(rng, load_request_schema(key, version))
    if key == _FETCH:
        values["max_wait"] = min(values.get("max_wait", 0), 100)
    try:
        data = bytearray(client.frame(key, version, **values)[4:])
    except Exception:  # noqa: BLE001 - a value that this version cannot say
        return
    is_whole = rng.random() < 0.5
    if not is_whole:
        data = _spoiled(rng, data)
    client.sock.sendall(len(data).to_bytes(4, "big") + data)
    if key in _WAITS - {_FETCH} or (key == _FETCH and not is_whole):
        raise ConnectionError  # it may wait for others; a client that goes is let go
    if is_whole:
        client.answer(key, version)
    else:
        client.take(int.from_bytes(client.take(4), "big"))


def fuzzed(servers: str, rng: random.Random, n_requests: int) -> int:
    """The number of requests that were cut off; each other one was answered in time."""
    n_cut, client = 0, RawClient(servers, seconds=30)
    for _ in range(n_requests):
        try:
            _ask(rng, client)
        except ConnectionError:
            n_cut += 1
            client.sock.close()
            client = RawClient(servers, seconds=30)
    client.sock.close()
    return n_cut


def _directory(path: Path) -> KafkaLog:
    log = KafkaLog(path)
    log.write("t", [{"key": str(i), "value": "v" * 300, "timestamp": i} for i in range(300)])
    for i in range(3):
        with log.transaction() as transaction:
            transaction.write("paid", [f"{i}-{n}" for n in range(4)], num_partitions=2)
            if i == 1:
                transaction.abort()
    return log


def _memory(pid: int) -> int:
    """Kilobytes that a process has, where the system says so."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmRSS:\s+(\d+)", status.read_text()) if status.exists() else None
    return int(found[1]) if found else 0


def _rounds(tmp_path: Path, seconds: float, seed: int) -> None:
    log, said = _directory(tmp_path / "kafka"), tmp_path / "stderr"
    command = [sys.executable, "-m", "segmentlog", "serve", str(log.path), "--internal"]
    command += ["--offsets", str(tmp_path / "offsets"), "--bind", "127.0.0.1:0"]
    until, n_all, before = time.monotonic() + seconds, 0, 0
    with (
        said.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            servers = process.stdout.readline().split()[0]
            while not n_all or time.monotonic() < until:
                begin = said.stat().st_size
                fuzzed(servers, random.Random(f"{seed}-{n_all}"), 200)
                with said.open("rb") as lines:
                    lines.seek(begin)
                    text = lines.read().decode(errors="replace")
                assert "Traceback" not in text, f"SERVE_FUZZ_SEED={seed}, {n_all} and on: {text}"
                with RawClient(servers) as client:
                    assert 300 == len(consume(client, "t", 0))
                n_all += 200
                before = before or _memory(process.pid)
            grown = _memory(process.pid) - before
        finally:
            process.terminate()
    print(f"{n_all:,} requests, seed {seed}, {grown >> 10} MB more than {before >> 10} MB")
    assert grown < _MOST_GROWTH_KB


def test_random_requests_are_answered_or_cut_off(tmp_path: Path) -> None:
    """A few; nothing but an answer, or the end of the connection, comes of one."""
    _rounds(tmp_path, 0, _SEED)


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS + 300)
def test_many_random_requests_are_answered_or_cut_off(tmp_path: Path) -> None:
    """As long as is asked for; the memory stays."""
    _rounds(tmp_path, _SECONDS, _SEED)
