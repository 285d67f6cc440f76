"""Ten mistakes of users, and the lines of Spark's output that contain our sentence.

``python tests/support/shown_errors.py`` prints the table, for a console, a notebook and a client
of Spark Connect.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import PySparkException
from ready_worker import plain_python

from segmentlog.store.lock import DirectoryLock
from segmentlog.testing.damage import flip_bit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.lines)) or 'not said'} of {self.of}"


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
spark = {session}
"""

_CLASSIC = """builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()"""

_CONSOLE = """
import shown_errors
for name in {names}:
    print("\\n" + shown_errors.MARKER, file=sys.stderr, flush=True)
    print(shown_errors.traceback_of(name, spark, {places}), file=sys.stderr, flush=True)
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


def traceback_of(name: str, spark: "SparkSession", places: Mapping[str, str]) -> str:
    """The traceback that Python shows, as if nothing stood around the case."""
    script = Path(places["SCRIPTS"], f"{name.replace(' ', '_')}.py")
    script.write_text(CASES[name].typed + "\n")
    try:
        exec(compile(script.read_text(), script, "exec"), {"spark": spark, **places})
    except PySparkException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        return "".join(traceback.format_exception(error.with_traceback(frames)))
    raise AssertionError(f"{name}: no error")


def _prepare(places: Mapping[str, str], settings: Mapping[str, str], session: str) -> str:
    return _PREPARE.format(places=dict(places), settings=dict(settings), session=session)


def _child(places: Mapping[str, str], code: str) -> str:
    """The error output of a program."""
    path = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    env = {**os.environ, "PYSPARK_PYTHON": plain_python(), "PYTHONPATH": path}
    with DirectoryLock(places["LOCKED"]):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def find(name: str, text: str) -> Shown:
    """The sentence of a case in an output."""
    lines = text.strip("\n").split("\n")
    found = (number for number, line in enumerate(lines, 1) if CASES[name].told in line)
    return Shown(tuple(found), len(lines), text)


def console(
    places: Mapping[str, str],
    names: list[str],
    settings: Mapping[str, str] | None = None,
    session: str = _CLASSIC,
) -> dict[str, Shown]:
    """The console of a program that ends at the error, with Spark's own log lines."""
    code = _prepare(places, settings or {}, session)
    code += _CONSOLE.format(names=names, places=dict(places))
    parts = _child(places, code).split(MARKER)[1:]
    return {
        name: find(name, part.partition("\n")[2]) for name, part in zip(names, parts, strict=True)
    }


def connect(
    places: Mapping[str, str], names: list[str], url: str,
    settings: Mapping[str, str] | None = None,
) -> dict[str, Shown]:  # fmt: skip
    """The console of a client of Spark Connect with a remote server."""
    return console(places, names, settings, f"builder.remote({url!r}).getOrCreate()")


def jupyter(
    places: Mapping[str, str],
    names: list[str],
    settings: Mapping[str, str] | None = None,
    magic: str = "",
) -> dict[str, Shown]:
    """The output below the cell of a notebook; `magic` is a line of IPython's."""
    import nbformat
    from nbclient import NotebookClient

    prepare = f"{magic}\n{_prepare(places, settings or {}, _CLASSIC)}"
    cells = [prepare, *(CASES[name].typed for name in names), "spark.stop()"]
    v4: Any = nbformat.v4  # its functions carry no types
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


def main() -> None:
    """Print the table; arguments are settings of Spark, as ``key=value``, and magic of IPython."""
    from spark_server import SparkServer

    settings = dict(word.split("=", 1) for word in sys.argv[1:] if word[0] != "%")
    magic = "\n".join(word for word in sys.argv[1:] if word[0] == "%")
    names = list(CASES)
    columns: dict[str, dict[str, Shown]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        places = situations(directory)
        columns["console"] = console(places, names, settings)
        columns["Jupyter"] = jupyter(places, names, settings, magic)
        with SparkServer("local[1]", directory) as server:
            columns["Connect"] = connect(places, names, server.url, settings)
    print(f"| error | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for name in names:
        print(f"| {name} | {' | '.join(str(shown[name]) for shown in columns.values())} |")


if __name__ == "__main__":
    main()
