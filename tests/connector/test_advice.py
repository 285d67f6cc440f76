"""Settings of a session that make segmentlog slower: `pyspark_segmentlog.slow_settings`."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pyspark_segmentlog

SOCKETS, BUFFER = "spark.python.unix.domain.socket.enabled", "spark.buffer.size"
JAVA = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
TOP = Path(__file__).parents[2]


def session(settings: Mapping[str, str], properties: Mapping[str, str] | None = None) -> Any:
    """A session with these settings, and with system properties if its JVM can be asked."""
    found = SimpleNamespace(conf=SimpleNamespace(get=settings.get))
    if properties is not None:
        system = SimpleNamespace(getProperty=properties.get)
        found._jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    return found


def recommended() -> dict[str, str]:
    """The settings in the block of the README."""
    (block,) = re.findall(r"```properties\n(.*?)```", (TOP / "README.md").read_text(), re.DOTALL)
    return dict(line.split(maxsplit=1) for line in block.splitlines())


@pytest.mark.parametrize(
    "any_spark", ["local", pytest.param("cluster", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.spark
@pytest.mark.needs_spark("the advice is about settings of Spark")
def test_a_session_of_defaults_is_advised(any_spark: SparkSession) -> None:
    """Classic and Connect sessions show which processes run the tasks."""
    is_local = any_spark.conf.get("spark.master").startswith("local[")
    java = f"spark.{'driver' if is_local else 'executor'}.extraJavaOptions"
    found = pyspark_segmentlog.slow_settings(any_spark)

    assert [SOCKETS, BUFFER, java] == [each.setting for each in found]
    assert "false" == found[0].found
    assert ("65536", "262144") == found[1][1:3]
    assert ("", JAVA) == found[2][1:3]
    assert "wrong memory" in found[2].why


def test_the_recommended_settings_of_the_readme_leave_nothing_to_advise() -> None:
    """Each of the settings is needed, for local sessions and for clusters."""
    given = recommended()

    assert 4 == len(given)
    for master, needless in (("local[2]", "executor"), ("yarn", "driver")):
        settings = given | {"spark.master": master}
        assert [] == pyspark_segmentlog.slow_settings(session(settings))
        for name in given:
            fewer = {each: value for each, value in settings.items() if each != name}
            found = pyspark_segmentlog.slow_settings(session(fewer))
            assert [name] * (needless not in name) == [each.setting for each in found]


def test_only_the_java_options_that_are_missing_are_named() -> None:
    """Other options of the job do not count, and options may stand in the defaults, too."""
    first, second = JAVA.split()
    settings = {
        SOCKETS: "TRUE",
        BUFFER: "1048576",
        "spark.executor.extraJavaOptions": f"-Xss4m {first}",
    }
    (found,) = pyspark_segmentlog.slow_settings(session(settings | {"spark.master": "k8s://x"}))
    defaults = {"spark.executor.defaultJavaOptions": second}

    assert (first, second) == found[1:3]
    assert [] == pyspark_segmentlog.slow_settings(session(settings | defaults))


def test_options_that_came_after_the_jvm_are_not_believed() -> None:
    """A session that is not the first of its process has the JVM of the first session."""
    settings = recommended() | {"spark.master": "local[2]"}
    properties = dict(each[2:].split("=") for each in JAVA.split())

    assert [] == pyspark_segmentlog.slow_settings(session(settings, properties))
    (found,) = pyspark_segmentlog.slow_settings(session(settings, {}))
    assert JAVA == found.better


def test_workers_that_are_not_reused_are_named() -> None:
    """Each task would start Python, and import the libraries."""
    settings = recommended() | {"spark.master": "yarn", "spark.python.worker.reuse": "false"}
    (found,) = pyspark_segmentlog.slow_settings(session(settings))

    assert ("spark.python.worker.reuse", "false", "true") == found[:3]
