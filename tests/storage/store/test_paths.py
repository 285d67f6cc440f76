"""Users write paths in several forms."""

import os
from pathlib import Path

import pytest

import segmentlog
from segmentlog.errors import LogDirectoryError
from segmentlog.store.paths import local_path


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/var/lib/kafka", "/var/lib/kafka"),
        ("/var/lib/kafka/", "/var/lib/kafka"),
        ("/var//lib/./kafka/../kafka", "/var/lib/kafka"),
        ("file:/var/lib/kafka", "/var/lib/kafka"),
        ("file:///var/lib/kafka", "/var/lib/kafka"),
        ("FILE:///var/lib/kafka", "/var/lib/kafka"),
        ("file://localhost/var/lib/kafka", "/var/lib/kafka"),
        ("file:///data/two%20words", "/data/two words"),
        ("file:///data/%C3%A9t%C3%A9", "/data/été"),
        ("file:///data/100%25", "/data/100%"),
        ("file:/data/a%3Fb%23c", "/data/a?b#c"),
        ("/data/two%20words", "/data/two%20words"),
        ("/data/a:b", "/data/a:b"),
        ("/~/x", "/~/x"),
        ("file:///~/x", "/~/x"),
    ],
)
def test_a_path_or_file_uri_means_a_local_path(written: str, meant: str) -> None:
    """Percent escapes are decoded only in URIs. A plain path is taken literally."""
    assert meant == local_path(written)


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is absolute, so that it has one meaning on the driver and on executors."""
    monkeypatch.chdir(tmp_path)

    assert str(tmp_path / "logs" / "a") == local_path("logs/a")
    assert str(tmp_path / "file:x") == local_path("./file:x")
    assert str(tmp_path / "a:b") == local_path("a:b")


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is expanded as a shell would."""
    monkeypatch.setenv("HOME", "/home/somebody")

    assert "/home/somebody/kafka" == local_path("~/kafka")


def test_path_objects_are_taken(tmp_path: Path) -> None:
    """Any object with `__fspath__` is accepted."""
    assert str(tmp_path) == local_path(tmp_path)


def test_symbolic_links_keep_the_name_that_the_user_gave(tmp_path: Path) -> None:
    """Messages name the path that the user gave, not the target of a link."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")

    assert str(link) == local_path(os.fspath(link))


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("hdfs://namenode/kafka", "hdfs://namenode/kafka: a directory at a URL can only be read"),
        ("s3a://bucket/kafka", "copy that directory to the URL"),
        ("S3://bucket", "locks, renames and syncs"),
        ("file://otherhost/kafka", "'otherhost'"),
        ("", "empty"),
        ("  ", "empty"),
        ("file:", "contains no path"),
        ("file://", "contains no path"),
        ("file://localhost", "contains no path"),
    ],
)
def test_paths_on_other_machines_are_refused(written: str, named: str) -> None:
    """A writer refuses URLs, other hosts and empty paths with an error that names the reason."""
    with pytest.raises(LogDirectoryError, match=named):
        local_path(written)


@pytest.mark.parametrize("name", ["kafka*", "logs?", "[ab]"])
def test_patterns_are_refused_with_a_word_about_them(tmp_path: Path, name: str) -> None:
    """Readers and writers refuse a pattern unless a file has that name.

    No directory is created.
    """
    (tmp_path / "kafka-logs").mkdir()
    for opens in (
        segmentlog.open_log_dir,
        segmentlog.open_writer,
        lambda path: segmentlog.delete_topic(path, "t"),
    ):
        with pytest.raises(LogDirectoryError, match="name each directory"):
            opens(tmp_path / name)

    assert ["kafka-logs"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/proc/nope", "allows no new directories"),
        ("/dev/null", "is a file, not a directory"),
        ("/dev/null/logs", "/dev/null is a file"),
        ("/tmp/a\0b", "null character"),
    ],
)
def test_places_where_no_directory_can_be_made(path: str, said: str) -> None:
    """The error is a sentence that a user understands, not only the system's words."""
    with pytest.raises(LogDirectoryError, match=said) as error:
        segmentlog.open_writer(path, "t")
    assert "Errno" not in str(error.value)
