"""Requests to a store are repeated, limited in time, and fail with our errors."""

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from segmentlog.errors import StorageError
from segmentlog.store.remote import requests
from segmentlog.store.remote.location import path_of_url
from segmentlog.store.remote.requests import Pending, request, side_by_side

PATH = "s3://bucket/kafka/orders-0/0.log"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between requests."""
    monkeypatch.setattr(requests, "_PAUSE_SECONDS", 0.0)


def failing(*errors: Exception):
    """A request that fails with each of the errors in turn, and then succeeds."""
    left = list(errors)

    def work() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    return work, left


def test_a_request_that_fails_once_is_made_again() -> None:
    """The caller sees only the answer."""
    work, left = failing(OSError("AWS Error SLOW_DOWN"))

    assert "answer" == request(PATH, "listing", work)
    assert [] == left


def test_a_request_that_keeps_failing_is_an_error_with_file_range_and_remedy() -> None:
    """The request is made a limited number of times."""
    work, left = failing(*[OSError("AWS Error INTERNAL_FAILURE")] * 9)

    with pytest.raises(StorageError) as caught:
        request(PATH, "reading bytes 5 to 9", work)

    assert 9 - requests._TRIES == len(left)
    assert PATH == caught.value.filename
    assert (
        f"{PATH}: reading bytes 5 to 9 failed: AWS Error INTERNAL_FAILURE: check the network, "
        "the endpoint and the state of the store, then try again"
    ) == str(caught.value)


@pytest.mark.parametrize(
    "error", [PermissionError("no"), OSError("AWS Error ACCESS_DENIED during HeadObject")]
)
def test_a_refusal_is_not_asked_for_again(error: OSError) -> None:
    """The remedy names the credentials."""
    work, left = failing(error, error)

    with pytest.raises(StorageError, match="give credentials in the environment") as caught:
        request(PATH, "opening", work)

    assert errno.EACCES == caught.value.errno
    assert 1 == len(left)


def test_a_missing_file_raises_the_error_of_the_system() -> None:
    """A missing object raises `FileNotFoundError`, which callers ignore for optional files."""
    work, _ = failing(FileNotFoundError("Path does not exist"))

    with pytest.raises(FileNotFoundError) as caught:
        request(PATH, "opening", work)

    assert (errno.ENOENT, PATH) == (caught.value.errno, caught.value.filename)


def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails after the deadline and not earlier."""
    monkeypatch.setattr(requests, "_DEADLINE_SECONDS", 0.2)
    ends = threading.Event()
    began = time.monotonic()

    with pytest.raises(StorageError, match=r"listing took more than 0.2 s: check the network"):
        request(PATH, "listing", ends.wait)

    assert 0.2 <= time.monotonic() - began
    ends.set()


def test_requests_that_never_end_keep_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of their threads is replaced, and ends with its request if this ends after all."""
    monkeypatch.setattr(requests, "_threads", requests._Threads())
    monkeypatch.setattr(requests, "_DEADLINE_SECONDS", 0.2)
    ends, threads = threading.Event(), set()

    def endless() -> None:
        threads.add(threading.current_thread())
        ends.wait()

    for pending in [Pending(PATH, "listing", endless) for _ in range(requests._THREADS)]:
        with pytest.raises(StorageError, match="took more than"):
            pending.result()

    monkeypatch.setattr(requests, "_DEADLINE_SECONDS", 60.0)
    assert "answer" == request(PATH, "listing", lambda: "answer")
    ends.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert "answer" == request(PATH, "listing", lambda: "answer")


def test_credentials_are_left_out_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages contain neither the credentials of a URL nor those of the environment."""
    path = path_of_url("s3://AKIAKEY:topsecret@bucket/kafka")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "sessiontoken")
    work, _ = failing(*[OSError("AKIAKEY with topsecret and sessiontoken is not known")] * 9)

    with pytest.raises(StorageError, match="… with … and … is not known") as caught:
        request(path, "opening", work)

    assert caught.value.__cause__ is None


def test_requests_are_under_way_together() -> None:
    """No request waits for the end of another."""
    together = threading.Barrier(4, timeout=10)
    pending = [Pending(PATH, "reading", together.wait) for _ in range(4)]

    assert [0, 1, 2, 3] == sorted(each.result() for each in pending)


def test_work_that_waits_is_done_together_and_keeps_its_order() -> None:
    """Other threads make the requests of the work, so that waiting work cannot block them."""
    together = threading.Barrier(4, timeout=10)

    def work(number: int) -> int:
        request(PATH, "reading", together.wait)
        return number

    assert [3, 1, 2, 0] == side_by_side(work, [3, 1, 2, 0])
    assert [] == side_by_side(work, [])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    """Threads do not survive a fork. Without new ones a request would wait for ever."""
    request(PATH, "reading", lambda: None)
    child = os.fork()
    if child == 0:
        os._exit(request(PATH, "reading", lambda: 7))
    assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def ended(code: str) -> tuple[bytes, bytes]:
    """Standard output and errors of a process that has run the code."""
    run = [sys.executable, "-c", "from segmentlog.store.remote import requests\n" + code]
    done = subprocess.run(run, capture_output=True, check=True, timeout=60)
    return done.stdout.strip(), done.stderr


def test_a_process_ends_after_its_requests() -> None:
    """The process waits for requests that are under way: its end would destroy the C++ client.

    No waiting request is begun.
    """
    code = (
        "import atexit, threading, time\n"
        "begun, ends, made = threading.Semaphore(0), threading.Event(), []\n"
        "atexit.register(lambda: print(len(made)))\n"
        "def work():\n"
        "    begun.release()\n"
        "    ends.wait()\n"
        "    time.sleep(0.1)\n"
        "    made.append(1)\n"
        "pending = [requests.Pending('s3://b/k', 'reading', work) for _ in range(40)]\n"
        "for _ in range(requests._THREADS):\n"
        "    begun.acquire()\n"
        "atexit.register(ends.set)\n"
    )
    assert (b"%d" % requests._THREADS, b"") == ended(code)


def test_no_request_keeps_a_process() -> None:
    """A process ends although a request hangs.

    A thread may wait for that request, or begin another.
    """
    code = (
        "import threading\n"
        "from segmentlog.reads.ordered_reads import read_in_order\n"
        "requests._PATIENCE_SECONDS = 0.1\n"
        "threading.excepthook = lambda _: None  # on a slow machine the reader is refused, too\n"
        "begun = threading.Event()\n"
        "def work():\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "def read():\n"
        "    for _ in range(2):\n"
        "        try:\n"
        "            requests.request('s3://b/k', 'reading', work)\n"
        "        except OSError as error:\n"
        "            print(error.strerror)\n"
        "    return iter(())\n"
        "batches = read_in_order([read], 2)\n"
        "threading.Thread(target=next, args=(batches, None), daemon=True).start()\n"
        "begun.wait()\n"
    )
    said = b"reading failed: [Errno 125] the process is ending"
    assert (said + b"\n" + said, b"") == ended(code)
