"""The first block of the README: a broker serves the topic that the example has restored."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from kafka_here import Broker, JavaClient
from kafka_here.gateway import gateway

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.interop


@pytest.mark.slow
def test_a_broker_serves_what_the_readme_restores(new_version: str, tmp_path: Path) -> None:
    """Kafka's console consumer prints the line that stands in the README."""
    readme = (TOP / "README.md").read_text()
    (command, printed) = re.findall(
        r"^\$ kafka-console-consumer\.sh (.*)\n(.*)\n```", readme, re.M
    )[0]
    broker = Broker(tmp_path / "kafka", new_version)
    with broker, JavaClient(broker) as client:
        client.create_topic("payments", retention_ms=-1)
    example = runpy.run_path(str(TOP / "examples" / "restore_topic.py"))
    example["main"](str(TOP / "examples" / "data"), str(broker.log_dir), "payments")
    with broker:
        words = shlex.split(command.replace("localhost:9092", broker.bootstrap_servers))
        tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        assert gateway(broker.jars).run(tool, *words) == f"{printed}\n"
