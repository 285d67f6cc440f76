"""An error of ours is one sentence, with no frames of ours before it, wherever Spark shows it."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from shown_errors import CASES, console, find, jupyter, situations, traceback_of

from pyspark_segmentlog.plain_errors import PlainErrors
from segmentlog.disk.lock import DirectoryLock
from segmentlog.errors import CorruptIndexError

pytestmark = pytest.mark.spark

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
MANY = ["wrong topic", "corrupt batch", "lock held"]  # on the driver, in a task, of a write
OURS = ("/pyspark_segmentlog/", "/segmentlog/")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Everything that the cases name; the lock is held."""
    found = situations(tmp_path_factory.mktemp("shown"))
    with DirectoryLock(found["LOCKED"]):
        yield found


def check(name: str, text: str, *, most: int) -> None:
    """The sentence is on one of the first `most` lines, and there is no frame of ours."""
    shown = find(name, text)
    assert len(shown.lines) == 1 + ("stage failure" in text), text
    assert shown.lines[0] <= most, text
    frames = [line for line in text.splitlines() if line.lstrip().startswith("File ")]
    assert not [line for line in frames if any(ours in line for ours in OURS)], text


@pytest.mark.parametrize("name", CASES)
def test_what_python_shows(spark: SparkSession, places: dict[str, str], name: str) -> None:
    """Whichever door of ours Spark came in by; Spark's own frames are the lines before it."""
    check(name, traceback_of(name, spark, places), most=17)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MANY)
def test_what_a_connect_client_shows(
    cluster: SparkSession, places: dict[str, str], name: str
) -> None:
    """More lines of Spark's before it, and none of ours."""
    check(name, traceback_of(name, cluster, places), most=27)


@pytest.mark.thorough
def test_on_a_console(tmp_path: Path) -> None:
    """The last line of what a program shows but one; of a task, also the third."""
    shown = console(situations(tmp_path), MANY)

    topic, batch, lock = (shown[name] for name in MANY)
    assert topic.of - 1 == topic.lines[0] <= 15, topic.text
    assert lock.of - 1 == lock.lines[0] <= 15, lock.text
    assert batch.lines[0] <= 5, batch.text
    assert batch.lines[-1] >= batch.of - 1, batch.text


@pytest.mark.thorough
def test_in_a_notebook(tmp_path: Path) -> None:
    """Spark's own frames take 30 lines there; one line of IPython's takes them away."""
    shown = jupyter(situations(tmp_path), MANY, {"spark.log.level": "OFF"}, "%xmode Minimal")

    assert max(each.lines[0] for each in shown.values()) <= 5, shown


def test_spark_is_asked_for_the_whole_traceback(
    spark: SparkSession, places: dict[str, str]
) -> None:
    """By its own setting, which is on unless somebody looks for a fault of ours."""
    spark.conf.set(SIMPLIFIED, "false")
    try:
        text = traceback_of("wrong topic", spark, places)
    finally:
        spark.conf.unset(SIMPLIFIED)

    assert "pyspark_segmentlog/reads/planner.py" in text


@pytest.mark.parametrize(
    ("setting", "error", "hides"),
    [
        ("SPARK_SIMPLIFIED_TRACEBACK", CorruptIndexError("i", "bad"), True),
        ("SPARK_SIMPLIFIED_TRACEBACK", ZeroDivisionError(), False),
        ("SPARK_TRACEBACK_WITH_LOCALS", CorruptIndexError("i", "bad"), False),
        ("NO_SPARK", CorruptIndexError("i", "bad"), False),
    ],
)
def test_bugs_keep_their_frames(
    monkeypatch: pytest.MonkeyPatch, setting: str, error: Exception, hides: bool
) -> None:
    """And so does everything outside Spark's workers."""
    for name in ("SPARK_SIMPLIFIED_TRACEBACK", "SPARK_TRACEBACK_WITH_LOCALS"):
        monkeypatch.delenv(name, raising=False)
    if setting == "SPARK_TRACEBACK_WITH_LOCALS":
        monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setenv(setting, "1")

    @PlainErrors()
    def door() -> None:
        try:
            {"effect": 1}["cause"]
        except KeyError as cause:
            raise error from cause

    with pytest.raises(type(error)) as raised:
        door()

    frames = [entry.name for entry in raised.traceback]
    assert ("door" in frames) is not hides
    assert (raised.value.__cause__ is None) is hides
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1" * hides
    assert pickle.loads(pickle.dumps(raised.value)).args == error.args
