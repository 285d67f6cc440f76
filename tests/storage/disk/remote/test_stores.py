"""Stores of pyarrow and fsspec list, open and read objects."""

from pathlib import Path

import pytest
from stores_here import store_of

from segmentlog import dataset, open_log_dir
from segmentlog.disk.remote import stores
from segmentlog.disk.remote.location import location_of, path_of_url
from segmentlog.disk.remote.stores import Store, store_at
from segmentlog.errors import LogDirectoryError


@pytest.fixture(params=["arrow", "fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each kind, with equal objects."""
    files = {"logs/a": b"0123456789", "logs/orders-0/0.log": b"xyz"}
    if request.param == "arrow":
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
        return store_of(tmp_path)
    memory = pytest.importorskip("fsspec").filesystem("memory")
    bucket = tmp_path.name
    for name, data in files.items():
        memory.pipe_file(f"/{bucket}/{name}", data)
    return store_at(location_of(f"memory://{bucket}"))


def test_listings(store: Store) -> None:
    """Keys are relative to the root. A deep listing has all objects below."""
    flat = dict(store.listing("logs", deep=False))
    assert {"logs/a", "logs/orders-0"} == set(flat)
    assert (10, False) == (flat["logs/a"].size, flat["logs/a"].is_directory)
    assert flat["logs/orders-0"].is_directory

    deep = dict(store.listing("logs", deep=True))
    assert 3 == deep["logs/orders-0/0.log"].size
    assert deep["logs/a"] == flat["logs/a"]
    assert "logs" in dict(store.listing("", deep=False))
    with pytest.raises(FileNotFoundError):
        list(store.listing("nope", deep=True))


def test_an_object_has_the_facts_of_its_listing(store: Store) -> None:
    """An object that was not replaced has one version in listings, look-ups and reads."""
    listed = dict(store.listing("logs", deep=True))["logs/a"]

    assert listed == store.facts("logs/a")
    opened = store.open("logs/a")
    assert (listed.size, listed.version) == opened.facts[:2]
    assert b"345" == opened.fetch(3, 3)
    assert store.facts("logs/orders-0").is_directory
    for find in (store.facts, store.open):
        with pytest.raises(FileNotFoundError):
            find("logs/nope")


def test_fsspec_serves_other_schemes(example_data: str) -> None:
    """A whole log directory is read by a URL of fsspec."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(example_data, "/copied/kafka", recursive=True)

    there, here = open_log_dir("memory://copied/kafka"), open_log_dir(example_data)

    assert there.topics() == here.topics()
    for topic_partition in here.topic_partitions():
        table = there.log(*topic_partition).scan().read_all()
        assert table == here.log(*topic_partition).scan().read_all()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nosuch://bucket/kafka", "nosuch"),
        ("s3://bucket/kafka?colour=topsecret", "parameters of pyarrow.*'colour'"),
        ("s3://bucket/kafka?request_timeout=topsecret", "cannot be opened"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named(url: str, said: str) -> None:
    """The error names the scheme or the option, but no value that may be secret."""
    with pytest.raises(LogDirectoryError, match=said) as caught:
        open_log_dir(url)
    assert "topsecret" not in str(caught.value)


def test_without_fsspec_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL that needs fsspec raises an error with the command that installs fsspec."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)

    with pytest.raises(LogDirectoryError, match="pip install fsspec"):
        open_log_dir("memory2://bucket/kafka")


@pytest.mark.parametrize(
    ("url", "made"),
    [
        ("gs://anonymous@bucket/kafka?scheme=http", "gs://anonymous@bucket/?scheme=http"),
        (
            "abfs://container:p%2Fw@account.dfs.core.windows.net/kafka",
            "abfs://container:p%2Fw@account.dfs.core.windows.net/",
        ),
        ("hdfs://user@name:8020/kafka?replication=1", "hdfs://user@name:8020/?replication=1"),
    ],
)
def test_pyarrow_gets_the_url_of_the_root(url: str, made: str) -> None:
    """The URL contains the credentials that the user gave."""
    assert made == stores._url(location_of(path_of_url(url)))


def test_s3_takes_the_options_of_its_url() -> None:
    """Keys, endpoint and region are taken from the URL. No request is made."""
    url = (
        "s3://key:secret@bucket/kafka?endpoint_override=http://127.0.0.1:1&region=eu-west-1"
        "&allow_bucket_creation=true&request_timeout=2"
    )
    store = store_at(location_of(path_of_url(url)))

    assert "eu-west-1" == store._filesystem.region


def test_a_dataset_at_a_url(example_data: str) -> None:
    """The threads of a dataset share one survey of the directory."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(example_data, "/dataset/kafka", recursive=True)

    there, here = dataset("memory://dataset/kafka"), dataset(example_data)

    assert there.to_table() == here.to_table()
