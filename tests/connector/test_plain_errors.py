"""Our errors are one sentence without our frames before it, wherever Spark shows them."""

import inspect
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from ready_worker import plain_python

from pyspark_segmentlog.plain_errors import PlainErrors
from segmentlog.errors import CorruptIndexError
from segmentlog.store.lock import DirectoryLock
from segmentlog.testing.damage import flip_bit

pytestmark = pytest.mark.spark

EXAMPLE_DATA = Path(__file__).parents[2] / "examples" / "data"


class Case(NamedTuple):
    """A mistake: the lines that a user types, and a part of the sentence about it."""

    typed: str
    told: str


class Shown(NamedTuple):
    """The lines with the sentence, counted from 1, and the number of all lines."""

    lines: tuple[int, ...]
    of: int
    text: str


_READ = 'spark.read.format("segmentlog")'
_WRITE = '.write.format("segmentlog").mode("append").option("topic", "t")'
_RESTORE = (
    'rows = spark.createDataFrame([(bytearray(b"a"), 0, 1), (bytearray(b"b"), 0, 0)], '
    '"value binary, partition int, offset bigint").coalesce(1)\n'
)

CASES = {
    "wrong topic": Case(
        f'{_READ}.option("subscribe", "ordres").load(DATA).count()', "holds no topic 'ordres'"
    ),
    "unknown option": Case(
        f'{_READ}.option("startingOffset", "earliest").load(DATA).count()',
        "did you mean 'startingOffsets'",
    ),
    "missing path": Case(f'{_READ}.load("/no/such/kafka").count()', "/no/such/kafka: "),
    "corrupt batch": Case(
        f"""{_READ}.option("assign", '{{"orders":[0]}}').load(CORRUPT).count()""",
        "but its header contains 0x",
    ),
    "bad startingOffsets": Case(
        f'{_READ}.option("startingOffsets", "newest").load(DATA).count()', "give earliest, latest"
    ),
    "data loss": Case(
        f"""{_READ}.option("assign", '{{"orders":[0]}}')"""
        """.option("endingOffsets", '{"orders":{"0":100000}}').load(DATA).count()""",
        "offset 100000 ",
    ),
    "lock held": Case(
        f'spark.range(3).selectExpr("cast(id as string) value"){_WRITE}'
        '.option("lockTimeout", "0").save(LOCKED)',
        "holds its lock",
    ),
    "column of a wrong type": Case(
        f'spark.range(3).selectExpr("id value"){_WRITE}.save(SCRATCH)', "column 'value' is bigint"
    ),
    "offsets out of order": Case(
        f'{_RESTORE}rows{_WRITE}.option("includeOffset", "true").save(SCRATCH)',
        "offset 0 cannot be written",
    ),
    "numPartitions contradicts": Case(
        'spark.range(3).selectExpr("cast(id as string) value")'
        f"{_WRITE.replace(chr(34) + 't' + chr(34), chr(34) + 'orders' + chr(34))}"
        '.option("numPartitions", "7").save(COPY)',
        "option 'numPartitions' is '7'",
    ),
}

_PREPARE = """
import sys
from pyspark.sql import SparkSession
globals().update({places})
builder = SparkSession.builder.config(map={settings})
spark = builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
"""

_CONSOLE = """
for script in {scripts}:
    print("\\n" + {marker!r}, file=sys.stderr, flush=True)
    print(traceback_of(script, dict(globals())), file=sys.stderr, flush=True)
spark.stop()
"""

MARKER = "<<<<<<<< next case"


def situations(directory: Path) -> dict[str, str]:
    """The directories that the cases name, made below `directory`."""
    places = {"DATA": str(EXAMPLE_DATA)}
    for name in ("CORRUPT", "COPY", "LOCKED"):
        places[name] = str(directory / name.lower())
        shutil.copytree(EXAMPLE_DATA, places[name])
    for name in ("SCRATCH", "SCRIPTS"):
        (directory / name.lower()).mkdir()
        places[name] = str(directory / name.lower())
    flip_bit(batch=0, field="body")(next(Path(places["CORRUPT"], "orders-0").glob("*.log")))
    return places


def script_of(name: str, places: Mapping[str, str]) -> str:
    """A file with the lines of a case."""
    script = Path(places["SCRIPTS"], f"{name.replace(' ', '_')}.py")
    script.write_text(CASES[name].typed + "\n")
    return str(script)


def traceback_of(script: str, names: Mapping[str, Any]) -> str:
    """The traceback that Python shows, as if nothing stood around the script.

    It imports what it needs: it also runs in programs that have nothing but its source.
    """
    import pathlib
    import traceback

    from pyspark.errors import PySparkException

    try:
        exec(compile(pathlib.Path(script).read_text(), script, "exec"), {**names})
    except PySparkException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(traceback.format_exception(error.with_traceback(frames)))
    raise AssertionError(f"{script}: no error")


def find(name: str, text: str) -> Shown:
    """The sentence of a case in an output."""
    lines = text.strip("\n").split("\n")
    found = (number for number, line in enumerate(lines, 1) if CASES[name].told in line)
    return Shown(tuple(found), len(lines), text)


def console(places: Mapping[str, str], names: list[str]) -> dict[str, Shown]:
    """The console of a program that ends at the error, with Spark's own log lines."""
    scripts = [script_of(name, places) for name in names]
    code = _PREPARE.format(places=dict(places), settings={})
    code += inspect.getsource(traceback_of).replace("Mapping[str, Any]", "dict")
    code += _CONSOLE.format(scripts=scripts, marker=MARKER)
    with DirectoryLock(places["LOCKED"]):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYSPARK_PYTHON": plain_python()},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    parts = done.stderr.split(MARKER)[1:]
    return {
        name: find(name, part.partition("\n")[2]) for name, part in zip(names, parts, strict=True)
    }


def jupyter(
    places: Mapping[str, str], names: list[str], settings: Mapping[str, str], magic: str
) -> dict[str, Shown]:
    """The output below the cell of a notebook; `magic` is a line of IPython's."""
    import nbformat
    from nbclient import NotebookClient

    prepare = magic + "\n" + _PREPARE.format(places=dict(places), settings=dict(settings))
    cells = [prepare, *(CASES[name].typed for name in names), "spark.stop()"]
    v4 = nbformat.v4
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])
    with DirectoryLock(places["LOCKED"]):
        NotebookClient(notebook, timeout=300, allow_errors=True, kernel_name="python3").execute()
    shown = {}
    for name, cell in zip(names, notebook.cells[1:-1], strict=True):
        text = ""
        for output in cell.outputs:
            text += "\n".join(output.get("traceback", [])) + "\n" * ("traceback" in output)
            text += output.get("text", "")
        shown[name] = find(name, text)
    return shown


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
    check(name, traceback_of(script_of(name, places), {"spark": spark, **places}), most=17)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MANY)
def test_a_connect_client_shows_the_sentence(
    cluster: SparkSession, places: dict[str, str], name: str
) -> None:
    """Spark adds more lines, and none of our frames."""
    check(name, traceback_of(script_of(name, places), {"spark": cluster, **places}), most=27)


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
        text = traceback_of(script_of("wrong topic", places), {"spark": spark, **places})
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
