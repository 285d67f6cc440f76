"""The doctor of a place in an object store: rights, the condition, the clock, and no traces."""

import errno
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import Result

import segmentlog
from segmentlog.bucket.clients import objects_at
from segmentlog.bucket.objects import ListedObject, Objects
from segmentlog.errors import StorageError
from segmentlog.store.paths import bucket_at
from segmentlog.tools import doctor

Run = Callable[..., Result]


class Store:
    """A store that refuses some requests, and does not keep every promise."""

    def __init__(self, objects: Objects, fault: str) -> None:
        self._objects, self._fault = objects, fault

    def _refuse(self, right: str) -> None:
        if right == self._fault:
            raise StorageError(errno.EACCES, f"{right} failed: 403 Forbidden", "place")

    lists_all = False

    def create(self, key: str, data: bytes) -> str | None:
        self._refuse("writing")
        if self._fault == "no condition":
            self._objects.put(key, [data])
            return "tag"
        return self._objects.create(key, data)

    def put(self, key: str, pieces: Iterable[bytes]) -> None:
        self._refuse("writing")
        self._objects.put(key, [b"".join(pieces)[: -1 if self._fault == "cut" else None]])

    def get(self, key: str) -> bytes | None:
        self._refuse("reading")
        if self._fault == "no network":
            raise StorageError(errno.EIO, "reading failed: error sending request", "place")
        found = self._objects.get(key)
        if found is None:
            self._refuse("missing")  # S3 without s3:ListBucket
        return found

    def read(self, key: str, start: int, n_bytes: int) -> bytes:
        return self._objects.read(key, start, n_bytes)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ListedObject]:
        self._refuse("listing")
        late = 3_600_000 if self._fault == "an hour" else 0
        for each in self._objects.list(prefix, after=after):
            yield each._replace(modified_ms=each.modified_ms + late)

    def delete(self, keys: Iterable[str]) -> None:
        self._refuse("removing")
        self._objects.delete(keys)


def _tree(path: Path) -> list[str]:
    return sorted(map(str, path.rglob("*")))


def _rows(run: Run, url: str, status: int) -> dict[str, dict[str, Any]]:
    lines = run("doctor", url, "--json", status=status).stdout.splitlines()
    return {each["name"]: each for each in map(json.loads, lines)}


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"bucket+file://{tmp_path}/log"


def _with_log(place: str) -> None:
    with segmentlog.open_writer(place, "orders") as writer:
        writer.append(pa.table({"value": ["a"]}))


@pytest.mark.parametrize("has_log", [False, True])
def test_a_good_place_is_left_as_it_was(
    has_log: bool, place: str, run: Run, tmp_path: Path
) -> None:
    if has_log:
        _with_log(place)
    before = _tree(tmp_path)
    found = _rows(run, place, 0)
    assert _tree(tmp_path) == before
    assert {each["state"] for each in found.values()} == {"ok"}
    assert found["reading"].get("commits") == (1 if has_log else None)
    assert abs(found["clock"]["skewMs"]) < 60_000


@pytest.mark.parametrize(
    ("fault", "name", "state", "words"),
    [
        ("reading", "reading", "problem", "403"),
        ("missing", "reading", "problem", "list the place"),
        ("listing", "listing", "problem", "403"),
        ("removing", "removing", "advice", "s3:DeleteObject"),
        ("writing", "condition", "problem", "s3:PutObject"),
        ("no network", "reading", "problem", "check the URL, the endpoint and the network"),
        ("no condition", "condition", "problem", "If-None-Match"),
        ("cut", "uploading in parts", "problem", "other bytes"),
        ("an hour", "clock", "advice", "3,6"),
    ],
)
@pytest.mark.parametrize("has_log", [False, True])
def test_what_is_wrong_is_named_and_nothing_stays(
    has_log: bool,
    fault: str,
    name: str,
    state: str,
    words: str,
    place: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if has_log:
        _with_log(place)
    location = bucket_at(place)
    assert location is not None
    store = Store(objects_at(location), fault)
    monkeypatch.setattr(doctor, "objects_at", lambda _: store)
    before = _tree(tmp_path)
    found = _rows(run, place, 1 if state == "problem" else 0)
    assert _tree(tmp_path) == before
    if has_log and fault == "listing":
        name = "reading"  # of a log without a checkpoint, which takes a list
    assert found[name]["state"] == state
    assert words in f"{found[name]['found']}; {found[name]['remedy']}"
    if fault == "removing":  # a user who may write, and not remove
        assert found["condition"]["state"] == ("ok" if has_log else "skipped")


def test_a_store_that_ignores_the_condition_shows_without_the_right_to_remove(
    place: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    _with_log(place)
    location = bucket_at(place)
    assert location is not None

    class Both(Store):
        def delete(self, keys: Iterable[str]) -> None:
            raise StorageError(errno.EACCES, "removing failed: 403", "place")

    both = Both(objects_at(location), "no condition")
    monkeypatch.setattr(doctor, "objects_at", lambda _: both)
    assert _rows(run, place, 1)["condition"]["state"] == "problem"
    assert segmentlog.read(place, "orders").num_rows == 1


def test_other_objects_and_other_places(tmp_path: Path, run: Run) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(b"x")
    found = _rows(run, f"bucket+file://{tmp_path}/other", 1)
    assert "file" in found["listing"]["found"]
    for url in (str(tmp_path), f"file://{tmp_path}", "hdfs://a/b"):
        done = run("doctor", url, status=2)
        assert "no URL of a store with conditional writes" in done.stderr
