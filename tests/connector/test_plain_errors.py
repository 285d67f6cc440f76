"""Our errors are one sentence without our frames before it, wherever Spark shows them."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from shown_errors import CASES, console, find, jupyter, situations, traceback_of

from pyspark_segmentlog.plain_errors import PlainErrors
from segmentlog.errors import CorruptIndexError
from segmentlog.store.lock import DirectoryLock

pytestmark = pytest.mark.spark

SIMPLIFIED = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
MANY = ["wrong topic", "corrupt batch", "lock held"]  # on the driver, in a task, of a write
OURS = ("/pyspark_segmentlog/", "/segmentlog/")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """All directories that the cases name, one of them with a held lock."""
    found = situations(tmp_path_factory.mktemp("shown"))
    with DirectoryLock(found["LOCKED"]):
        yield found


def check(name: str, text: str, *, most: int) -> None:
    """The sentence is on one of the first `most` lines, without any of our frames."""
    shown = find(name, text)
    assert len(shown.lines) == 1 + ("stage failure" in text), text
    assert shown.lines[0] <= most, text
    frames = [line for line in text.splitlines() if line.lstrip().startswith("File ")]
    assert not [line for line in frames if any(ours in line for ours in OURS)], text


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in MANY else pytest.mark.slow) for each in CASES],
)
@pytest.mark.needs_spark("Sail shows Python's traceback after the sentence")
def test_python_shows_the_sentence(spark: SparkSession, places: dict[str, str], name: str) -> None:
    """Spark calls us in several ways. Its own frames are the lines before the sentence."""
    check(name, traceback_of(name, spark, places), most=17)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MANY)
def test_a_connect_client_shows_the_sentence(
    cluster: SparkSession, places: dict[str, str], name: str
) -> None:
    """Spark adds more lines, and none of our frames."""
    check(name, traceback_of(name, cluster, places), most=27)


@pytest.mark.slow
def test_on_a_console(tmp_path: Path) -> None:
    """The sentence is in the line before the last one.

    For a task, it is also in the third line.
    """
    shown = console(situations(tmp_path), MANY)

    topic, batch, lock = (shown[name] for name in MANY)
    assert topic.of - 1 == topic.lines[0] <= 15, topic.text
    assert lock.of - 1 == lock.lines[0] <= 15, lock.text
    assert batch.lines[0] <= 5, batch.text
    assert batch.lines[-1] >= batch.of - 1, batch.text


@pytest.mark.slow
def test_in_a_notebook(tmp_path: Path) -> None:
    """Spark's own frames take 30 lines, which one line of IPython's removes."""
    shown = jupyter(situations(tmp_path), MANY, {"spark.log.level": "OFF"}, "%xmode Minimal")

    assert max(each.lines[0] for each in shown.values()) <= 5, shown


@pytest.mark.slow
def test_spark_is_asked_for_the_whole_traceback(
    spark: SparkSession, places: dict[str, str]
) -> None:
    """Spark's own setting shows all frames, to find a fault of segmentlog."""
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
    """Everything outside Spark's workers keeps its frames, too."""
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
