"""The examples run, and print the output that they state."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import polars as pl
import pytest
from ready_worker import plain_python
from typer.main import get_command

import segmentlog

TOP = Path(__file__).parents[2]
EXAMPLES = TOP / "examples"

#: Documents whose commands and statements are run.
DOCUMENTS = {
    str(path.relative_to(TOP)): path.read_text()
    for path in (
        TOP / "README.md",
        TOP / "connector" / "README.md",
        TOP / "storage" / "README.md",
        *sorted((TOP / "storage" / "docs").glob("*.md")),
        *sorted((TOP / "connector" / "docs").glob("*.md")),
    )
}

#: Blocks of commands with their output; without output, if that depends on the machine.
BLOCKS = [
    found
    for text in DOCUMENTS.values()
    for block in re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    if (found := re.findall(r"^\$ segmentlog (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE))
]

#: Commands that report a problem, which their output shows.
WITH_A_PROBLEM = (
    "audit examples/data payments",
    "replicas examples/brokers",
    "restore examples/brokers",
)


def output(name: str, *arguments: str) -> str:
    """The output of an example."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYSPARK_PYTHON": plain_python()},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def copy_examples(to: Path) -> dict[str, bytes]:
    """Copy the directories that the documents name, and return the files of the copy."""
    for name in ("brokers", "checkpoint", "cluster", "data", "tier"):
        shutil.copytree(EXAMPLES / name, to / "examples" / name)
    return files_of(to)


def files_of(copy: Path) -> dict[str, bytes]:
    """The files of a copy of the examples, without the lock file, which Git ignores."""
    found = {str(path.relative_to(copy)): path for path in (copy / "examples").rglob("*")}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if path.is_file() and name != "examples/data/.lock"
    }


def changed_files(before: dict[str, bytes], copy: Path) -> list[str]:
    """Files that were changed, created or removed since the examples were copied."""
    return sorted({name for name, _ in before.items() ^ files_of(copy).items()})


def test_the_engine_works_without_spark() -> None:
    """The example prints offsets, a look-up by time, and the records from there."""
    printed = output("engine_without_spark.py")

    assert "orders-0            0    335" in printed
    assert "at offset 125" in printed
    assert "420 records were written, " in printed


#: Runs each command in a fork of a process that has imported everything.
FORKS = """
import json, os, sys
from segmentlog.tools import cli
for line in sys.stdin:
    place, *sys.argv[1:] = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(place)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        cli.main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

#: A command in a directory: its exit status, its output and its messages.
CommandLine = Callable[[Path, str], tuple[int, str, str]]


@pytest.fixture(scope="module")
def command_line() -> Iterator[CommandLine]:
    """Commands as a shell would run them."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYSPARK_PYTHON": plain_python()},
    ) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None

        def run(place: Path, command: str) -> tuple[int, str, str]:
            words = shlex.split(command.replace("$PWD", str(place)))
            print(json.dumps([str(place), *words]), file=forks.stdin, flush=True)
            status = int(forks.stdout.readline())
            return status, (place / "stdout").read_text(), (place / "stderr").read_text()

        yield run
        forks.stdin.close()


@pytest.mark.thorough
@pytest.mark.parametrize("block", BLOCKS, ids=[each[0][0] for each in BLOCKS])
@pytest.mark.addition("command", "document")
def test_the_commands_of_the_documents_print_what_they_show(
    block: list[tuple[str, str]], tmp_path: Path, command_line: CommandLine
) -> None:
    """The commands of a block run in a copy, in their order, and print what the block shows.

    They do not change the examples: a reader runs them in a checkout.
    """
    before = copy_examples(tmp_path)
    shutil.copytree(EXAMPLES / "data", tmp_path / "build" / "data")  # commands write here
    for command, shown in block:
        status, printed, said = command_line(tmp_path, command)
        assert status == int(command.startswith(WITH_A_PROBLEM)), said[-3000:]
        if shown:
            assert (shown, "") == (printed, said)
    assert [] == changed_files(before, tmp_path)


@pytest.mark.addition("command")
def test_the_documents_show_every_command_of_the_command_line() -> None:
    """Each command therefore runs in the test above; `serve` does not end by itself."""
    from segmentlog.tools.cli import app

    names = {*get_command(app).commands} - {"serve"}

    assert len(names) > 30
    assert names <= {command.split()[0] for block in BLOCKS for command, _ in block}


@pytest.mark.parametrize(
    "name", ["bucket", "clusters", "commit", "decoding", "python", "tables", "tiers", "tools"]
)
def test_the_python_of_the_documents_runs(tmp_path: Path, name: str) -> None:
    """The blocks of a document run on a copy, in their order, and do not change the examples.

    Other tests run the blocks of Spark.
    """
    text = DOCUMENTS[f"storage/docs/{name}.md"].replace("file:///tmp/", f"file://{tmp_path}/")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks = [block for block in blocks if "spark." not in block]
    before = copy_examples(tmp_path)
    (tmp_path / "build").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert [] == changed_files(before, tmp_path)


def test_polars_and_duckdb_take_the_stream(example_data: str) -> None:
    """A scan is an Arrow stream, and segmentlog converts nothing."""
    log = segmentlog.open_log_dir(example_data).log("orders", 0)
    frame = pl.from_arrow(log.scan().read_all())
    assert isinstance(frame, pl.DataFrame)
    stream = log.scan()  # DuckDB finds it by the name of the variable
    ((counted,),) = duckdb.sql("select count(*) from stream").fetchall()

    assert (335, 335) == (len(frame), counted)
    assert stream.schema.names == frame.columns


@pytest.mark.spark
@pytest.mark.slow
def test_spark_connect_reads(example_data: str) -> None:
    """The reads run through Spark Connect, whose client has no JVM."""
    code = (
        "import os, sys; os.environ['PYSPARK_PYTHON'] = sys.executable\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.remote('local[1]').getOrCreate()\n"
        f"print('rows', spark.read.format('segmentlog').load({example_data!r}).count())\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False
    )

    assert "rows 1062" in done.stdout, done.stderr[-3000:]


@pytest.mark.spark
@pytest.mark.slow
def test_the_template_of_a_tested_job_passes_its_tests(tmp_path: Path) -> None:
    """A copy of the directory runs by itself, as a new user's."""
    copy = shutil.copytree(EXAMPLES / "tested_job", tmp_path / "tested_job")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=copy,
        env=os.environ | {"PYSPARK_PYTHON": plain_python()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert "3 passed" in done.stdout, done.stdout[-3000:]


def test_the_latest_by_key_needs_no_argument() -> None:
    """Without an argument, the example makes a temporary directory."""
    assert "compacted prices-0: kept 100 of 3,300 records" in output("latest_by_key.py")
