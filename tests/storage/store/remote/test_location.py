"""URLs of stores as paths, and the credentials in them."""

import os
import pickle
import subprocess
import sys

import pytest

from segmentlog import open_log_dir
from segmentlog.errors import LogDirectoryError
from segmentlog.store.paths import local_path, readable_path
from segmentlog.store.readable import is_url
from segmentlog.store.remote import location
from segmentlog.store.remote.location import location_of, path_of_url, without_options


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("s3://bucket/kafka", "s3://bucket/kafka"),
        ("S3A://bucket/kafka/", "s3://bucket/kafka"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/two%20words", "s3://bucket/two words"),
        ("gcs://anonymous@bucket/a", "gs://anonymous@bucket/a"),
        (
            "abfss://container@account.dfs.core.windows.net/a",
            "abfs://container@account.dfs.core.windows.net/a",
        ),
        ("hdfs://name:8020/kafka", "hdfs://name:8020/kafka"),
        ("hdfs:///kafka", "hdfs:///kafka"),
        (
            "s3://b/a?region=eu-west-1&endpoint_override=http://minio:9000",
            "s3://b;region=eu-west-1;endpoint_override=http:%2F%2Fminio:9000/a",
        ),
    ],
)
def test_a_url_becomes_a_path_that_names_can_be_joined_to(url: str, path: str) -> None:
    """The options come before the key. A path that is converted again does not change."""
    assert path == path_of_url(url) == readable_path(url) == path_of_url(path)
    assert is_url(path)
    assert os.path.dirname(os.path.join(path, "orders-0")) == path


def test_a_path_has_the_parts_of_its_url() -> None:
    """The key of a path lies below the root of its store."""
    path = path_of_url("s3://b/kafka/x?endpoint_override=http://minio:9000&anonymous=true")

    found = location_of(path)

    assert ("s3", "b", "kafka/x") == (found.scheme, found.host, found.key)
    assert {"endpoint_override": "http://minio:9000", "anonymous": "true"} == found.options
    assert path == f"{found.root}/{found.key}"
    assert "s3://b/kafka/x" == without_options(path)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:top%2Fsecret@bucket/kafka",
        "abfs://container:topsecret@account.dfs.core.windows.net/kafka",
        "s3://bucket/kafka?session_token=topsecret",
        "gs://bucket/kafka?access_token=topsecret",
        "myfs://user:topsecret@host/kafka?any=topsecret",
    ],
)
def test_credentials_stand_in_no_path(url: str) -> None:
    """A path contains a digest of its credentials.

    Only this process knows the credentials of a digest.
    """
    path = path_of_url(url)

    assert "secret" not in path
    assert "AKIAKEY" not in path
    found = location_of(path)
    assert "secret" in found.password + "".join(found.options.values())
    assert path == path_of_url(url)
    assert path != path_of_url(url.replace("secret", "another"))


def test_another_process_says_that_it_was_not_given_credentials() -> None:
    """A process that got only the path raises an error that recommends the environment."""
    path = path_of_url("s3://key:topsecret@bucket/kafka")
    code = f"""
from segmentlog.errors import LogDirectoryError
from segmentlog.store.readable import status_of
try:
    status_of({path!r})
except LogDirectoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "environment" in done.stdout
    assert "secret" not in done.stdout


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:abc/topsecret@bucket/kafka",
        "s3://KEY:12/topsecret@bucket",
        "gs://KEY:1/topsecret",
        "s3://KEY:abc;topsecret/x@bucket",
        "s3://KEY:abc?topsecret@bucket/kafka",
        "s3a://K:/topsecret@b",
        "abfs://account:ab/topsecret@container",
        "webhdfs://user:x/topsecret@host:9870/kafka",
        "s3:/KEY:topsecret@bucket/kafka",
        "s3:KEY:topsecret@bucket",
        "S3a:/KEY:a/topsecret@bucket",
        "s3://KEY:topsecret;a=b/topsecret@bucket",
        "s3://KEY:topsecret;region=b/topsecret@bucket",
    ],
)
def test_malformed_credentials_stand_in_no_error(url: str) -> None:
    """A character that is not quoted ends the credentials early."""
    for parse in (readable_path, local_path, open_log_dir):
        with pytest.raises(LogDirectoryError) as caught:
            parse(url)
        assert "topsecret" not in f"{caught.value} {caught.value!r}"
        assert "KEY" not in str(caught.value)


def test_credentials_stand_in_no_repr() -> None:
    """A debugger and a log show the parts of a path."""
    path = path_of_url("s3://KEY:topsecret@bucket/kafka?session_token=topsecret")
    shown = repr((location_of(path), location._secrets, path))
    assert "topsecret" not in shown
    assert "KEY" not in shown
    assert "bucket" in shown


@pytest.mark.parametrize(
    "url", ["s3://KEY:ab;topsecret@bucket/kafka", "s3://KEY:ab@topsecret@bucket/kafka"]
)
def test_credentials_with_a_semicolon_are_credentials(url: str) -> None:
    """Only what follows the bucket are options."""
    path = path_of_url(url)
    assert "topsecret" not in path
    assert "bucket" == location_of(path).host
    assert path == path_of_url(path)


def test_a_key_with_an_at_is_a_key() -> None:
    """Neither is a port of a server a password."""
    assert "s3://bucket/me@host/kafka" == path_of_url("s3://bucket/me@host/kafka")
    assert "webhdfs://h:9870/me@host" == path_of_url("webhdfs://h:9870/me@host")


@pytest.mark.parametrize("url", ["s3://", "s3:///kafka", "s3://key:secret@/kafka", "gs://?a=b"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    """The error shows the correct form of a URL, and no credentials."""
    with pytest.raises(LogDirectoryError, match="contains no bucket; write") as caught:
        path_of_url(url)
    assert "secret" not in str(caught.value)


def test_writers_refuse_a_url_in_one_sentence() -> None:
    """The error shows no credentials, and can be pickled."""
    with pytest.raises(LogDirectoryError, match="at a URL can only be read") as caught:
        local_path("s3://key:secret@bucket/kafka")
    assert "secret" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_local_path_stays_one() -> None:
    """File URIs, colons and relative paths are not URLs of stores."""
    assert readable_path("/data/a:b") == "/data/a:b"
    assert readable_path("file:///data/a%20b") == "/data/a b"
    assert not is_url(readable_path("logs"))
    assert "/var/lib;kafka" == without_options("/var/lib;kafka")
