"""Commands begin and end well: help, errors, pipes, interruption, completion."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker_lock import as_broker
from checkpoints import write_checkpoint
from typer.main import get_command
from typer.testing import CliRunner, Result

import segmentlog as package
from segmentlog.reads import snapshot
from segmentlog.testing.reference import Record, encode_batch
from segmentlog.tools.cli import app
from segmentlog.tools.commands import READS, WRITES
from segmentlog.txn.topics import take_out

Run = Callable[..., Result]
REGISTERED = {each.name or each.callback.__name__: each for each in app.registered_commands}
COMMANDS = tuple(REGISTERED)

#: Arguments that a command needs before a directory, and after it.
FIRST = {
    "grep": ("a",),
    "mirror": ("{}",),
    "placement": ("{}",),
    "restore": ("{}",),
    "table": ("producers",),
}
NEEDED = {
    "audit": ("orders", "--table", "{}/query/rows.csv"),
    "clone": ("orders", "orders-v2"),
    "compare": ("{}",),
    "configure": ("-s", "segment.ms=1"),
    "delete-records": ("--topic", "orders", "--before", "0"),
    "delete-topic": ("orders",),
    "erase": ("--key", "a"),
    "offsets": ("--checkpoint", "{}/query"),
    "placement": ("--replication-factor", "1"),
    "produce": ("orders", "{}/query/metadata"),
    "undelete": ("orders",),
}


#: Commands that need topics which a broker keeps for itself.
OF_CLUSTERS = {"groups", "placement", "transactions", "cluster"}


@pytest.mark.addition("command")
def test_each_command_has_json() -> None:
    """A script needs no other form; `dump` has ``--format json``, and `serve` prints no result."""
    command = get_command(app)
    without = [
        name
        for name, each in command.commands.items()
        if "--json" not in {option for one in each.params for option in one.opts}
    ]

    assert ["dump", "serve"] == without


def segmentlog(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "segmentlog", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        (("topics", "{}"), 1),
        (("verify", "{}"), 2),
        (("produce", "{}/../new", "t"), 0),
        pytest.param(("produce", "{}/../new", "t"), 1, marks=pytest.mark.thorough),
        pytest.param(("grep", "order-58", "{}"), 2, marks=pytest.mark.thorough),
    ],
)
def test_a_standard_stream_may_be_closed(
    example_data: str, tmp_path: Path, arguments: tuple[str, ...], closed: int
) -> None:
    """A daemon has none of the three; the work and the exit status stay the same."""
    path = shutil.copytree(example_data, tmp_path / "data")
    given = [each.replace("{}", str(path)) for each in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "segmentlog", *given],
        input="a\nb\n" if closed else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: os.close(closed),
    )

    assert (0, "") == (done.returncode, "" if closed == 2 else done.stderr)
    if arguments[0] == "produce":
        made = package.read(tmp_path / "new", "t") if closed else None
        assert made is None or [b"a", b"b"] == made["value"].to_pylist()


def test_importing_the_library_loads_nothing_of_the_tools() -> None:
    """Neither the command line nor its dependencies are imported."""
    heavy = "{'typer', 'rich', 'segmentlog.tools'}"
    code = f"import sys, segmentlog; print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.addition("command")
def test_help_teaches_with_examples_that_parse(run: Run, command: str) -> None:
    """The help of each command has examples, whose options exist."""
    monospaced = re.sub(r"\s+", " ", run(command, "--help").stdout)
    epilog = REGISTERED[command].epilog
    shown = [line for line in epilog.split("\n\n") if "segmentlog " in line]

    assert "Examples:" in monospaced
    assert len(shown) >= 2
    for line in shown:
        words = shlex.split(re.search(r"(?:^|\s)segmentlog ([^|]*)", line)[1])
        options = [word for word in words[1:] if word.startswith("-")]

        assert command == words[0]
        assert all(option in monospaced for option in options), line


def test_no_arguments_show_the_commands(run: Run) -> None:
    """The output is that of --help."""
    printed = CliRunner().invoke(app, []).output

    assert all(re.search(rf"^\W*{command} ", printed, re.M) for command in COMMANDS)
    assert WRITES in re.sub(r"\s+", " ", printed)


def test_no_arguments_show_the_first_minute(run: Run, tmp_path: Path) -> None:
    """The first lines find a record and write it out; each of them parses."""
    printed = CliRunner().invoke(app, []).output
    shown = re.findall(r"segmentlog ((?:topics|grep|cat) .*?)\s*$", printed, re.MULTILINE)

    assert ["topics", "grep", "cat"] == [line.split()[0] for line in shown]
    for line in shown:
        words = [each.replace("/var/lib/kafka", f"{tmp_path}/nowhere") for each in line.split()]
        assert "no such file or directory" in run(*words, status=2).stderr


@pytest.mark.parametrize(
    "command",
    [each for each, found in REGISTERED.items() if found.rich_help_panel in {READS, WRITES}],
)
def test_the_help_groups_commands_by_the_lock_that_they_take(
    run: Run, tmp_path: Path, command: str, example_cluster: str
) -> None:
    """Beside a broker, commands of one group are refused, and commands of the other group run."""
    if command in OF_CLUSTERS | {"restore"}:  # it writes only to the directory of a broker
        shutil.copytree(example_cluster, tmp_path, dirs_exist_ok=True)
    else:
        topic = "_schemas" if command == "schemas" else "orders"
        with package.open_writer(tmp_path, topic) as writer:
            writer.append(pa.table({"key": [b'{"keytype": "NOOP"}'], "value": [b"a"]}))
    if command == "undelete":
        take_out(str(tmp_path), "orders")
    writes = {WRITES: True, READS: False}[REGISTERED[command].rich_help_panel]
    write_checkpoint(tmp_path / "query", {0: '{"orders":{"0":1}}'}, committed=0)
    (tmp_path / "query" / "rows.csv").write_text("partition,offset\n0,0\n")
    first = [each.format(example_cluster) for each in FIRST.get(command, ())]
    needed = [each.format(tmp_path) for each in NEEDED.get(command, ())]
    with as_broker(tmp_path):
        done = run(command, *first, tmp_path, *needed, status=2 if writes else 0)

    assert writes == ("is in use" in done.stderr)


def test_a_wrong_path_leads_to_the_log_directories_in_it(example_data: str) -> None:
    """Images of brokers keep their log directory below the directory that users mount."""
    done = segmentlog("topics", str(Path(example_data).parent))

    assert 2 == done.returncode
    assert done.stderr.endswith(
        "or a .log file; in it, these are log directories: cluster, data\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "{}/nothing"], "there is no such file or directory"),
        (["describe", "{}"], "holds neither a directory named"),
        (["verify", "{}"], "holds neither a directory named"),
        (["recover", "s3://bucket/x"], "a directory at a URL can only be read"),
        (["dump", "{}/\x1b[31m"], r"\x1b[31m"),
        (["grep", "{}", "order-58"], "in this order: segmentlog grep PATTERN DIR"),
        (["cat", "orders", "{}"], "in this order: segmentlog cat DIR TOPIC"),
        (["cat", "orders", "{}/nothing"], "there is no such file or directory"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    """An error is one line on standard error, with status 2 and without a traceback."""
    done = segmentlog(*(each.format(tmp_path) for each in arguments))

    assert (2, "") == (done.returncode, done.stdout)
    assert done.stderr.startswith("segmentlog: ")
    assert message in done.stderr
    assert 1 == done.stderr.count("\n")
    assert done.stderr.strip().isprintable()


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    """An error of the system names the file."""
    path = tmp_path / f"{0:020d}.index"
    path.symlink_to(tmp_path / "nowhere")
    done = segmentlog("dump", str(path))
    output = segmentlog("dump", str(tmp_path), "-o", str(tmp_path / "no" / "where"))

    assert 2 == done.returncode
    assert (2, f"segmentlog: {tmp_path}/no/where.partial: No such file or directory\n") == (
        output.returncode,
        output.stderr,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["dump"], "Missing argument 'PATH"),
        (["dump", ".", "--since", "soon"], "since"),
        (["dump", ".", "--start-offset", "-1"], "--start-offset"),
        (["x"], "'x'"),
    ],
)
def test_wrong_options_are_refused(run: Run, arguments: list[str], named: str) -> None:
    """The status is 2, and the error names the option."""
    result = run(*arguments, status=2)

    assert "" == result.stdout
    assert named in result.stderr


#: Words that other tools have for a command, and the command that is meant.
MEANT = {
    "repair": "recover", "fix": "recover", "fsck": "verify", "check": "verify", "ls": "topics",
    "find": "grep", "lag": "groups", "consumers": "groups", "head": "cat", "tail": "cat",
    "read": "cat", "du": "usage", "kafka-topics.sh": "topics", "kafka-dump-log": "dump",
    "console-consumer": "cat", "consumer-groups": "groups", "topcs": "topics",
    "recvoer": "recover",
}  # fmt: skip


@pytest.mark.parametrize("word", MEANT)
def test_a_word_of_another_tool_leads_to_the_command(run: Run, word: str) -> None:
    """The error for an unknown command names the one that does this."""
    said = " ".join(run(word, "/nowhere", status=2).stderr.split())

    assert f"No such command '{word}'" in said
    assert MEANT[word] in said.partition(f"'{word}'")[2]


def test_an_unknown_option_leads_to_the_commands_that_have_it(run: Run) -> None:
    """They are those that only read; an option for deletion is not suggested for another one."""
    said = " ".join(run("topics", "--partition", "3", status=2).stderr.split())

    assert "it is an option of grep, cat, dump" in said
    for command, given in (("retain", "--yess"), ("retain", "--purg"), ("configure", "--remov")):
        said = run(command, "/nowhere", given, status=2).stderr
        assert f"No such option: {given}" in said
        assert not re.search("mean|give", said)


DELETING = [
    name
    for name, each in get_command(app).commands.items()
    if any("--yes" in one.opts for one in each.params)
]
NEAR = [name[:at] + "x" + name[at + 1 :] for name in DELETING for at in range(len(name))]


@pytest.mark.parametrize(
    "word", [*NEAR, *MEANT, "delete", "remove", "rm", "purge", "clean", "delete-record", "retian"]
)
def test_no_command_that_deletes_is_guessed(run: Run, word: str) -> None:
    """A typing mistake may lead only to commands after which all records are still there."""
    said = " ".join(run(word, status=2).stderr.split()).partition(f"'{word}'")[2]

    assert {"retain", "compact", "delete-records", "delete-topic", "erase"} == set(DELETING)
    assert [] == [name for name in DELETING if name in said]


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--files=x.log", "give it as the first argument, without a name"),
        ("--print-data-log", "give '--records'"),
    ],
)
def test_options_of_kafkas_dump_tool_lead_to_ours(run: Run, option: str, hint: str) -> None:
    """The error for an option of Kafka's tool names our option."""
    said = run("dump", ".", option, status=2).stderr.replace("│", "")

    assert hint in " ".join(said.split())


def test_the_version_is_that_of_the_package(run: Run) -> None:
    """The command line and Python have the same version; unknown names are refused."""
    installed = version("pyspark-segmentlog")

    assert f"segmentlog {installed}\n" == run("--version").stdout
    assert installed == package.__version__
    with pytest.raises(AttributeError, match="no attribute '__versions__'"):
        package.__versions__  # noqa: B018


def test_warnings_of_the_library_are_lines_too(write_log: Callable[..., Path]) -> None:
    """Standard error has one line about a torn tail."""
    path = write_log([[(0, 1), (1, 2)]])
    with (path / f"{0:020d}.log").open("ab") as file:
        file.write(b"\0\0\0torn")
    done = segmentlog("describe", str(path))

    assert 0 == done.returncode
    assert 1 == done.stderr.count("segmentlog: ")
    assert "ends in the middle of a batch" in done.stderr


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """A file whose dump is larger than any pipe's buffer."""
    batch = encode_batch([Record(i, 0, b"k", b"v" * 100) for i in range(200)])
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"".join((200 * i).to_bytes(8, "big") + batch[8:] for i in range(500)))
    return path


@pytest.mark.parametrize("output_format", ["table", "json", "arrow"])
def test_a_pipe_that_closes_is_no_error(long_log: Path, output_format: str) -> None:
    """Standard error is empty, as in ``segmentlog dump … | head -1``."""
    command = [sys.executable, "-m", "segmentlog", "dump", str(long_log), "--records"]
    with subprocess.Popen(
        [*command, "-f", output_format], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        complaint = process.stderr.read()

    assert b"" == complaint
    assert 141 == process.returncode


_INTERRUPTED = """
import os, signal, sys
from segmentlog.tools.cli import main

def interrupt(event, args):
    if event == "open" and ".partial" in str(args[0]):
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
main()
"""


def test_interruption_is_quiet(long_log: Path, tmp_path: Path) -> None:
    """Ctrl-C leaves no traceback and no partial output."""
    output = tmp_path / "out.json"
    command = [sys.executable, "-c", _INTERRUPTED, "dump", str(long_log), "--records"]
    done = subprocess.run(
        [*command, "-f", "json", "-o", str(output)], capture_output=True, check=False, timeout=120
    )

    assert (130, b"", b"") == (done.returncode, done.stdout, done.stderr)
    assert [] == [each for each in tmp_path.iterdir() if each.name.startswith("out.json")]


@pytest.mark.parametrize("module", ["segmentlog.errors", "segmentlog.tools.message_format"])
def test_interruption_is_quiet_while_the_command_is_imported(module: str) -> None:
    """A short command spends most of its time so."""
    code = (
        "import os, signal, sys\n"
        "from segmentlog_command import main\n"
        "def interrupt(event, args):\n"
        f"    if event == 'import' and args[0] == {module!r}:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(interrupt)\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "cat", "--help"]
    done = subprocess.run(command, capture_output=True, check=False)

    assert (130, b"", b"") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("segmentlog describe {} --topic o", ["orders"]),
        (
            "segmentlog dump {} --records --topic ",
            ["__transaction_state", "customers", "orders", "payments"],
        ),
        ("segmentlog dump {}/nowhere --topic ", []),
        ("segmentlog delete-topic {} o", ["orders"]),
    ],
)
def test_topics_complete_from_the_directory(
    example_data: str, words: str, expected: list[str]
) -> None:
    """Completion returns the names of the directory's topics."""
    done = segmentlog(
        _SEGMENTLOG_COMPLETE="complete_bash",
        COMP_WORDS=words.format(shlex.quote(example_data)),
        COMP_CWORD=str(words.count(" ")),
    )

    assert expected == done.stdout.split()
    assert "" == done.stderr


def test_a_locale_without_unicode_gets_every_line(tmp_path: Path) -> None:
    """Letters that the locale does not have are written as escapes."""
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(encode_batch([Record(0, 0, "ключ".encode(), "é".encode())]))
    variables = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = segmentlog("dump", str(path), "--records", **variables)

    assert 0 == done.returncode
    assert r"\u043a\u043b\u044e\u0447" in done.stdout


def test_an_interval_beyond_kafkas_bound_is_refused(run: Run, example_data: str) -> None:
    """A number beyond 64 bits once ended in a traceback."""
    for number in (2**31, 2**64, -1):
        refused = run("reindex", example_data, "--index-interval-bytes", number, status=2)
        assert "--index-interval-bytes" in refused.output


def test_commands_and_columns_of_tables_need_no_kernels() -> None:
    """`doctor` says what is wrong with them, so the command line has to start."""
    code = (
        "import sys\n"
        "sys.modules['segmentlog.native'] = None\n"
        "import segmentlog.tools.cli\n"
        "from segmentlog.kafka_tables import table_schema\n"
        "table_schema('producers')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "command",
    [
        "topics",
        "describe",
        "usage",
        "verify",
        "preflight",
        "analyze",
        "recover --dry-run",
        "mirror",
    ],
)
def test_the_names_in_a_directory_are_not_listed_for_each_partition(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A mirror of 800 partitions, and a preflight, once did; they took the square of the time."""
    listed: list[str] = []
    real = snapshot._names_now

    def noted(path: str, before: Any) -> Any:
        if before is None:  # a refresh of a young directory lists the names, and reads nothing
            listed.append(path)
        return real(path, before)

    monkeypatch.setattr(snapshot, "_names_now", noted)
    counts = []
    for n_partitions in (2, 12):
        logs = tmp_path / f"logs{n_partitions}"
        with package.open_writer(logs, "t", num_partitions=n_partitions) as writer:
            writer.append(pa.table({"value": [b"v"] * n_partitions * 2}))
        copy = [f"{logs}.copy"] if command == "mirror" else []
        for _ in range(2):  # a second mirror compares
            listed.clear()
            run(*command.split(), logs, *copy)
        counts.append(len(listed))
    assert counts[0] == counts[1]
