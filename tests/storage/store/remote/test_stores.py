"""Stores of pyarrow and fsspec list, open and read objects."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, LocalFileSystem
from stores_here import store_of

from segmentlog import dataset, open_log_dir
from segmentlog.errors import LogDirectoryError
from segmentlog.store.remote import stores
from segmentlog.store.remote.location import location_of, path_of_url
from segmentlog.store.remote.profiles import Credentials, Profile
from segmentlog.store.remote.stores import ArrowStore, RenewedStore, Store, store_at


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
        ("s3://bucket/kafka?colour=topsecret", "options are unknown here: colour;"),
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


@pytest.mark.parametrize(
    ("url", "container", "given"),
    [
        (
            "abfss://logs:p%2Fw@account.dfs.core.windows.net/kafka",
            "logs",
            {"account_name": "account", "account_key": "p/w"},
        ),
        (
            "abfs://logs@account.dfs.core.windows.net/kafka?sas_token=sv%3D2",
            "logs",
            {"account_name": "account", "sas_token": "sv=2"},
        ),
        (
            "abfs://account:key@logs/kafka?dfs_storage_authority=.other.example",
            "logs",
            {
                "account_name": "account",
                "account_key": "key",
                "dfs_storage_authority": ".other.example",
            },
        ),
        (
            "abfs://account:key@127.0.0.1:10000/logs/kafka?enable_tls=false",
            "",
            {
                "account_name": "account",
                "account_key": "key",
                "blob_storage_authority": "127.0.0.1:10000",
                "dfs_storage_authority": "127.0.0.1:10000",
                "blob_storage_scheme": "http",
                "dfs_storage_scheme": "http",
            },
        ),
    ],
)
def test_azure_takes_the_key_of_its_url(
    monkeypatch: pytest.MonkeyPatch, url: str, container: str, given: dict[str, str]
) -> None:
    """A key or a token is handed to the client, which its own parser of URLs does not do."""
    made: list[dict[str, str]] = []
    monkeypatch.setattr("pyarrow.fs.AzureFileSystem", lambda **options: made.append(options))
    store = store_at(location_of(path_of_url(url)))

    assert [given] == made
    assert isinstance(store, ArrowStore)
    key = "kafka" if container else "logs/kafka"
    assert "logs/kafka" == store._path(key)


def test_an_unknown_option_of_azure_is_named() -> None:
    """The error names the option, and neither its value nor the key."""
    with pytest.raises(LogDirectoryError, match=r"options are unknown here: colour;") as caught:
        open_log_dir("abfs://account:topsecret@logs/kafka?colour=topsecret")
    assert "topsecret" not in str(caught.value)


def test_a_missing_directory_of_a_client_with_errors_of_its_own(tmp_path: Path) -> None:
    """The client of Google Cloud Storage reports a missing directory as an error like any other.

    An error about a directory that is there stays an error.
    """

    class Client(LocalFileSystem):  # type: ignore[misc]  # it has no types
        type_name = "gcs"

        def get_file_info(self, asked: object) -> object:
            if isinstance(asked, FileSelector):
                raise OSError("no answer")
            return super().get_file_info(asked)

    store = ArrowStore(Client(), str(tmp_path))
    with pytest.raises(FileNotFoundError):
        list(store.listing("nope", deep=True))
    with pytest.raises(OSError, match="no answer"):
        list(store.listing("", deep=True))


def test_credentials_of_a_profile_are_looked_up_before_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that reads a copy for longer than its credentials count goes on."""
    lasts = [timedelta(hours=1), timedelta(seconds=30)]
    given: list[str] = []

    def credentials() -> Credentials:
        given.append(f"key{len(given)}")
        return Credentials(given[-1], "secret", None, datetime.now(UTC) + lasts.pop())

    profile = Profile(credentials, "eu-north-1", "http://127.0.0.1:1", "")
    monkeypatch.setattr(stores, "find_profile", lambda options: profile)
    store = store_at(location_of(path_of_url("s3://bucket/logs?profile=work")))
    assert isinstance(store, RenewedStore)
    first = store._filesystem
    assert ["bucket/a", "bucket/b"] == [store._path("a"), store._path("b")]
    assert store._filesystem is not first
    assert (["key0", "key1"], "eu-north-1") == (given, store._filesystem.region)


def test_a_dataset_at_a_url(example_data: str) -> None:
    """The threads of a dataset share one survey of the directory."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.put(example_data, "/dataset/kafka", recursive=True)

    there, here = dataset("memory://dataset/kafka"), dataset(example_data)

    assert there.to_table() == here.to_table()
