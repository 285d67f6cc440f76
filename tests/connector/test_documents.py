"""The guide of the connector and its pages: their blocks run as a reader would type them."""

import re
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

TOP = Path(__file__).parents[2]
PAGES = ("README.md", "docs/options.md", "docs/streams.md", "docs/operations.md")

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.addition("document")
def test_the_blocks_of_a_page_run(spark: SparkSession, tmp_path: Path, page: str) -> None:
    """In their order, in one shell, on a copy of the examples."""
    for name in ("data", "checkpoint"):
        shutil.copytree(TOP / "examples" / name, tmp_path / "examples" / name)
    text = (TOP / "connector" / page).read_text().replace("${env:PWD}/", "")
    # The session of the tests was started in another directory than a reader's.
    text = re.sub(r"\b(?=(?:examples|build)/)", f"{tmp_path}/", text)
    if page == "docs/operations.md":  # its compaction is of what the guide restores
        read = spark.read.format("segmentlog").option("subscribe", "orders")
        rows = read.load(str(tmp_path / "examples" / "data")).select("key", "value")
        write = rows.write.format("segmentlog").options(topic="orders", numPartitions=3)
        write.mode("append").save(str(tmp_path / "build" / "restored"))
    blocks = re.findall(r"^```(python|sql)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = {"spark": spark}
    try:
        for language, block in blocks:
            if language == "python":
                exec(compile(block, page, "exec"), shell)
                continue
            for statement in re.split(r";\s*$", block, flags=re.MULTILINE):
                if statement.strip():
                    spark.sql(statement).collect()
    finally:
        for query in spark.streams.active:
            query.stop()
        for kind, name in re.findall(r"CREATE (?:TEMPORARY )?(TABLE|VIEW) (\w+)", text):
            spark.sql(f"DROP {kind} IF EXISTS {name}")

    assert len(blocks) > 1
