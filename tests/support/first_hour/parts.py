"""The parts of the first hour: the input, and the output."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from first_hour.bare import TOP, Bare, link_libraries
from first_hour.masks import mask

__all__ = ["PARTS", "Hour"]

Snippets = list[tuple[str, str]]


def snippets(path: str, languages: tuple[str, ...] = ("python", "sql")) -> Snippets:
    """The fenced blocks of a README, unchanged."""
    text = (TOP / path).read_text()
    return [
        (language, block)
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
        if language in languages
    ]


@dataclass(frozen=True)
class Hour:
    """A bare environment, and a checkout as its working directory."""

    bare: Bare
    checkout: Path

    @classmethod
    def begin(cls, bare: Bare, checkout: Path) -> "Hour":
        """Begin in a copy of the files that a new user reads and runs."""
        checkout.mkdir()
        shutil.copytree(TOP / "examples", checkout / "examples")
        (checkout / "examples" / "data" / ".lock").unlink(missing_ok=True)
        return cls(bare, checkout)

    def shell(self, *words: str | Path, shown: str = "", **variables: str) -> str:
        """A command with its output, and with its status if it fails."""
        done = subprocess.run(
            [str(word) for word in words], cwd=self.checkout, text=True, timeout=500, check=False,
            env=self.bare.variables(PWD=str(self.checkout), **variables),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        status = f"\n[exit {done.returncode}]" if done.returncode else ""
        typed = shown or " ".join(str(word) for word in words)
        return self.masked(f"$ {typed}\n{done.stdout}{status}")

    def masked(self, printed: str) -> str:
        """The output, without the parts that differ from run to run."""
        places = [(self.bare.root, "<venv>"), (self.checkout, "<checkout>")]
        return mask(printed, places)

    def paste(self, pasted: Snippets) -> str:
        """Run snippets, one after the other, in one Python."""
        listed = self.checkout.parent / "snippets.json"
        listed.write_text(json.dumps(pasted))
        script = Path(__file__).with_name("paste.py")
        return self.shell("python", script, listed, shown="python")


def quickstart(hour: Hour) -> str:
    """The first line of the README."""
    return hour.shell("python", "examples/quickstart.py")


def python_and_sql(hour: Hour) -> str:
    """Every snippet of the READMEs in one interpreter, and then mistakes."""
    pasted = [("", "\n# README.md\n"), *snippets("README.md")]
    pasted += [("", "\n# connector/README.md\n"), *snippets("connector/README.md")]
    pasted += [("", "\n# what the stream has written\n"), ("python", STREAM)]
    pasted += [("", "\n# read back what was written\n"), ("python", READ_BACK)]
    for title, text in MISTAKES.items():
        pasted += [("", f"\n# {title}\n"), ("python", text)]
    return hour.paste(pasted)


STREAM = """
query.awaitTermination()
spark.read.format("segmentlog").load("build/streamed").groupBy("topic").count().orderBy("topic").show()
""".strip()

READ_BACK = """
logs = spark.read.format("segmentlog").option("preserve", "true").load("build/restored")
broker = spark.read.format("segmentlog").option("preserve", "true").option("subscribe", "orders").load("examples/data")
logs.exceptAll(broker).count(), broker.exceptAll(logs).count(), logs.count()
""".strip()  # noqa: E501

MISTAKES = {
    "a first write with another number of partitions": """
new = orders.select("key", "value").write.format("segmentlog").mode("append")
new.option("topic", "mine").option("numPartitions", 2).save("build/mine")
new.option("topic", "mine").option("numPartitions", 3).save("build/mine")
segmentlog.delete_topic("build/mine", "mine")
new.option("topic", "mine").option("numPartitions", 3).save("build/mine")
segmentlog.open_log_dir("build/mine").topics()
""".strip(),
    "a path that is not there": 'spark.read.format("segmentlog").load("examples/date").count()',
    "an option that is misspelled": """
spark.read.format("segmentlog").option("startingOffset", "earliest").load("examples/data").count()
""".strip(),
    "a topic that is not there": """
spark.read.format("segmentlog").option("subscribe", "order").load("examples/data").count()
""".strip(),
    "rows without a value": """
spark.range(1).write.format("segmentlog").option("topic", "mine").mode("append").save("build/mine")
""".strip(),
    "no mode": """
orders.select("value").write.format("segmentlog").option("topic", "mine").save("build/mine")
""".strip(),
}


def commands(hour: Hour) -> str:
    """The commands of the README, in order."""
    ours = r"^\$ ((?:segmentlog|python examples/).*)$"
    found = re.findall(ours, (TOP / "README.md").read_text(), re.MULTILINE)
    return "\n".join(hour.shell(*command.split()) for command in found)


def spark_sql(hour: Hour) -> str:
    """The SQL of the READMEs in Spark's own shell."""
    texts = [text for path in READMES for _, text in snippets(path, ("sql",))]
    (hour.checkout / "readme.sql").write_text("".join(texts))
    return hour.shell("spark-sql", "-S", "-f", "readme.sql")


READMES = ("README.md", "connector/README.md")

JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
records = spark.read.format("segmentlog").load("examples/data")
records.groupBy("topic").count().orderBy("topic").show()
"""


def connect(hour: Hour) -> str:
    """A client of Spark Connect, and the server that it starts."""
    client = JOB.replace("builder", 'builder.remote("local")')
    client = client.replace('"examples/data"', f'"{hour.checkout}/examples/data"')
    (hour.checkout / "connect.py").write_text(client)
    libraries = link_libraries(["pyspark[connect]"], hour.checkout / "build" / "connect")
    return hour.shell("python", "connect.py", PYTHONPATH=str(libraries))


def notebook(hour: Hour) -> str:
    """The snippets in a notebook, which shows its output in its cells."""
    empty: dict[str, Any] = {
        "cell_type": "code",
        "metadata": {},
        "outputs": [],
        "execution_count": None,
    }
    cells = [empty | {"source": each} for each in (JOB, MISTAKES["an option that is misspelled"])]
    cells[-1]["metadata"] = {"tags": ["raises-exception"]}
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    whole = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (hour.checkout / "hour.ipynb").write_text(json.dumps(whole))
    libraries = link_libraries(["nbconvert", "ipykernel"], hour.checkout / "build" / "notebook")
    words = ["python", "-m", "nbconvert", "--execute", "--to", "notebook", "--inplace"]
    said = hour.shell(*words, "hour.ipynb", PYTHONPATH=str(libraries))
    executed = json.loads((hour.checkout / "hour.ipynb").read_text())
    return f"{said.splitlines()[0]}\n" + hour.masked("".join(map(_cell, executed["cells"])))


def _cell(cell: dict[str, Any]) -> str:
    """A cell of a notebook with its output; of an error, the last words."""
    shown = [f"\n# In [{cell['execution_count']}]\n", *cell["source"], "\n"]
    for output in cell["outputs"]:
        shown += output.get("text", ())
        if output["output_type"] == "error":
            shown.append(f"{output['ename']}: {output['evalue']}\n")
    return "".join(shown)


def submit(hour: Hour) -> str:
    """Spark with a Python that has the libraries, and with our wheel or zip alone."""
    (hour.checkout / "job.py").write_text(JOB.replace("\nrecords", f"\n{REGISTER}\nrecords", 1))
    cluster = Bare.make(hour.checkout.parent / "cluster", hour.bare.wheel, installed=False)
    names = (hour.bare.wheel.name, "segmentlog.zip")
    for name in names:
        shutil.copy(hour.bare.wheel, hour.checkout / name)
    there = Hour(cluster, hour.checkout)
    return "\n".join(there.shell("spark-submit", "--py-files", name, "job.py") for name in names)


REGISTER = """
import pyspark_segmentlog

pyspark_segmentlog.register(spark)
"""


PARTS: dict[str, Callable[[Hour], str]] = {
    "python_and_sql": python_and_sql,
    "quickstart": quickstart,
    "commands": commands,
    "spark_sql": spark_sql,
    "connect": connect,
    "submit": submit,
    "notebook": notebook,
}
