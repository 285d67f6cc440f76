"""Requests to a server that are spoiled: lost answers, errors, throttling.

`spoiled_requests` says what is played.  A plain `pytest` plays what a commit depends on.
"""

import contextlib
import errno
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from moto_here import Moto
from proxies import FAULTS, Fault, FaultyServer, Sent
from random_bucket import REGION, World, patient_clients
from spoiled_requests import OPERATIONS, new_place, new_process, play, play_all
from store_servers import S3Server

import segmentlog
from segmentlog.bucket.clients import connect
from segmentlog.bucket.objects import REFUSALS
from segmentlog.errors import CommitInDoubtError, StorageError
from segmentlog.store.paths import bucket_at

_WRITE = "write, and a checkpoint"
_SEED = int(os.environ.get("BUCKET_SEED", "1"))
#: Duration of the slow test of random operations.
_SECONDS = float(os.environ.get("BUCKET_SECONDS", "3600"))
_SERVER = os.environ.get("BUCKET_SERVER", "moto")  #: of that test, or S3Proxy
#: Of the cases of the test of spoiled requests, one in so many is played.
_EVERY = int(os.environ.get("BUCKET_EVERY", "3"))


@pytest.fixture
def proxy(moto: Moto) -> Iterator[FaultyServer]:
    """A proxy before a server."""
    with FaultyServer(moto.port) as made, patient_clients():  # no request stays silent here
        yield made
    new_process()


def _is_commit(_number: int, sent: Sent) -> bool:
    return sent.method == "PUT" and "/commits/" in sent.target


def _place(moto: Moto, proxy: FaultyServer) -> str:
    return new_place(moto.url("faults"), proxy)


@pytest.mark.parametrize(
    ("name", "stays", "outcome", "is_there"),
    [
        ("500 after", True, "done", True),  # it reads what it has written
        ("409 before", True, "in doubt", False),
        ("403", False, "StorageError", False),
    ],
)
def test_the_request_that_decides(
    moto: Moto, proxy: FaultyServer, name: str, outcome: str, *, stays: bool, is_there: bool
) -> None:
    found = play(
        OPERATIONS[_WRITE], proxy, _place(moto, proxy), _is_commit, FAULTS[name], stays=stays
    )
    assert (found.outcome, found.is_there) == (outcome, is_there)


def test_an_upgrade_whose_marker_the_store_refuses_is_in_doubt(
    moto: Moto, proxy: FaultyServer
) -> None:
    """Its commit is there, and nobody has replaced the marker."""

    def is_marker(_number: int, sent: Sent) -> bool:
        return sent.method == "PUT" and sent.target.endswith("/segmentlog.bucket")

    fault = FAULTS["412 before"]
    found = play(OPERATIONS["upgrade"], proxy, _place(moto, proxy), is_marker, fault, stays=True)
    assert (found.outcome, found.is_there) == ("in doubt", True)


@pytest.mark.parametrize(
    "first", ["500 after", "reset after", "503 after", "403 after", "500 before"]
)
@pytest.mark.parametrize("code", ["AccessDenied", "ExpiredToken", "RequestTimeTooSkewed"])
def test_a_refusal_after_a_lost_answer_is_no_definite_error(
    moto: Moto, proxy: FaultyServer, first: str, code: str
) -> None:
    """The client makes a conditional request once, so that a refusal is the answer to it."""
    url = _place(moto, proxy)
    _write(url)
    tried = []

    def choose(number: int, sent: Sent) -> Fault | None:
        if not _is_commit(number, sent):
            return None
        tried.append(sent)
        return FAULTS[first] if len(tried) == 1 else Fault(False, 403, code)

    proxy.choose = choose
    if "before" in first:
        with pytest.raises(CommitInDoubtError):
            _write(url)
    else:
        _write(url)
        assert len(tried) == 1
    proxy.reset()
    new_process()
    assert segmentlog.read(url, "orders").num_rows == 2 - ("before" in first)


def test_a_refusal_that_nobody_can_check_is_no_definite_error(
    moto: Moto, proxy: FaultyServer
) -> None:
    """The store has acted and says 403, and does not answer for a while then."""
    url = _place(moto, proxy)
    _write(url)
    faults: list[Fault] = []

    def choose(number: int, sent: Sent) -> Fault | None:
        if _is_commit(number, sent) and not faults:
            faults.extend([FAULTS["500 before"]] * 4)  # one stays
            return FAULTS["403 after"]
        return faults.pop() if len(faults) > 1 and "/commits/" in sent.target else None

    proxy.choose = choose
    _write(url)
    proxy.reset()
    new_process()
    assert segmentlog.read(url, "orders").num_rows == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "AccessDenied"), (400, "KMS.DisabledException"), (404, "NoSuchBucket")],
)
def test_a_refused_commit_is_known_at_once(
    moto: Moto, proxy: FaultyServer, status: int, code: str
) -> None:
    url = _place(moto, proxy)
    _write(url)
    n_before = sum(_is_commit(0, each) for each in proxy.requests)
    proxy.choose = lambda number, sent: (
        Fault(False, status, code) if _is_commit(number, sent) else None
    )
    with pytest.raises(StorageError, match=code):
        _write(url)
    assert sum(_is_commit(0, each) for each in proxy.requests) == n_before + 1
    proxy.reset()
    assert segmentlog.read(url, "orders").num_rows == 1


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a request that its client never ends takes three minutes
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_request_of_every_operation(
    moto: Moto, name: str, say: Callable[[str], None]
) -> None:
    say(f"| {name} | {play_all(OPERATIONS[name], moto.url('faults'), every=_EVERY)} |")


def _play_world(store: Moto | S3Server, seed: int) -> Counter[str]:
    url, part_bytes = store.url("worlds"), 0
    if not isinstance(store, Moto):
        url, part_bytes = store.signed_url("worlds", REGION), 5 << 20
    with FaultyServer(store.port) as server, patient_clients(part_bytes):
        world = World(random.Random(seed), server, url)
        try:
            world.play(30)
        except BaseException as error:
            error.add_note(f"seed {seed}, after {world.said()}")
            raise
        finally:
            world.close()
            new_process()
    return world.counts


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_random_operations_for_long(moto: Moto, say: Callable[[str], None]) -> None:
    """Worlds are played until the time is over (`BUCKET_SECONDS`, `BUCKET_SEED`)."""
    counts, seed, ends = Counter[str](), 1_000_000 * _SEED, time.monotonic() + _SECONDS
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(S3Server()) if _SERVER == "S3Proxy" else moto
        while time.monotonic() < ends:
            counts += _play_world(server, seed)
            seed += 1
    say(f"{seed - 1_000_000 * _SEED:,} worlds: {dict(sorted(counts.items()))}")
    names = ("write", "numbered", "sweep", "mirror up", "join", "compact", "erase")
    assert all(counts[f"{name}: done"] for name in names)


def _write(url: str) -> None:
    with segmentlog.open_writer(url, "orders") as writer:
        writer.append(pa.table({"value": ["a"]}))


def _refused(status: int, code: str) -> Callable[[int, Sent], Fault | None]:
    return lambda _number, _sent: Fault(False, status, code)


def _of_data(fault: Fault) -> Callable[[int, Sent], Fault | None]:
    return lambda _number, sent: fault if "/data/" in sent.target else None


@pytest.mark.parametrize(
    ("status", "code", "number", "said"),
    [
        (403, "AccessDenied", 13, "not permitted"),
        (403, "InvalidAccessKeyId", 13, "credentials were not accepted"),
        (400, "ExpiredToken", 13, "credentials were not accepted"),
        (404, "NoSuchBucket", 2, "no such bucket"),
        (404, "ContainerNotFound", 2, "no such bucket"),
        (503, "SlowDown", 5, "SlowDown"),
    ],
)
def test_a_refusal_says_what_is_missing(
    moto: Moto, proxy: FaultyServer, status: int, code: str, number: int, said: str
) -> None:
    url = _place(moto, proxy)
    proxy.choose = _refused(status, code)
    with pytest.raises(
        StorageError, match=f"segmentlog.bucket: reading failed: .*{said}"
    ) as found:
        _write(url)
    assert found.value.errno == number
    assert code in str(found.value)


def test_a_conflict_of_an_unconditional_write(moto: Moto, proxy: FaultyServer) -> None:
    """S3 answers 409 to a write that meets another one, and 404 to a part of an ended upload."""
    url = _place(moto, proxy)
    for fault in (Fault(False, 409, "OperationAborted"), Fault(False, 404, "NoSuchUpload")):
        proxy.choose = _of_data(fault)
        with pytest.raises(StorageError, match=r"\.batches: writing failed"):
            _write(url)


def test_no_credentials_and_no_bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    new_process()
    with pytest.raises(StorageError, match=r"no such bucket or container.*NoSuchBucket"):
        _write(moto.url("x").replace("s3://logs", "s3://missing"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # No machine gives the credentials of a role.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    new_process()
    with pytest.raises(StorageError, match=r"no credentials were found.*give credentials"):
        _write(moto.url("x"))
    new_process()


@pytest.mark.parametrize("name", ["127.0.0.1:1", "no-such-host.invalid"])
def test_what_was_never_sent_is_refused_at_once(moto: Moto, name: str) -> None:
    """A create without a connection is not in doubt, and is not asked for two minutes."""
    url = f"s3://bucket/logs?scheme=http&endpoint_override={name}&region=eu-north-1"
    objects = connect(bucket_at(url))
    with pytest.raises(StorageError) as found:
        objects.create("segmentlog/commits/1", b"{}")
    assert found.value.errno in REFUSALS & {errno.ECONNREFUSED, errno.EHOSTUNREACH}


@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_a_wrong_key_of_azure_is_what_a_reader_hears_of(
    moto: Moto, proxy: FaultyServer, scheme: str
) -> None:
    """Not that a package is missing which would read a copy of a log directory."""
    proxy.choose = _refused(403, "AuthenticationFailed")
    url = (
        f"{scheme}://container/logs?account_name=account&account_key=d3Jvbmc%3D&enable_tls=false"
        f"&blob_storage_authority=127.0.0.1:{proxy.port}&dfs_storage_authority=127.0.0.1:{proxy.port}"
    )
    for ask in (segmentlog.open_log_dir, segmentlog.sweep):
        with pytest.raises(StorageError) as found:
            ask(url)
        assert "adlfs" not in str(found.value)
        assert "d3Jvbmc" not in str(found.value)
        if scheme == "az":
            assert "credentials were not accepted" in str(found.value)
            assert "AuthenticationFailed" in str(found.value)
