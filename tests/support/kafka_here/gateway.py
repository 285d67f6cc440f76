"""One JVM for each version of Kafka, shared by its clients and tools: starting takes a second."""

import functools
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import get_return_value, is_error
from quick_java import FLAGS

from kafka_here.artifacts import java, py4j_jar


class _Client(GatewayClient):  # type: ignore[misc]  # py4j has no types
    """Raises the JVM's exceptions itself.

    PySpark replaces what py4j would raise them with, for the whole process.  It asks Spark's JVM
    for the class of an exception by its number, which there belongs to another object: an earlier
    error of a test in Spark came out of Kafka's client.
    """

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        answer = super().send_command(command, retry, binary)
        if not binary and is_error(answer)[0]:
            get_return_value(answer, self, command.split("\n")[1], command.split("\n")[2])
        return answer


class Gateway:
    """A JVM that lives until this process ends.

    `jars`: directory of the jars of one version. `is_measured`: whether it is to be fast, with the
    memory of a broker; others start in two thirds of the time.
    """

    def __init__(self, jars: Path, *, is_measured: bool = False) -> None:
        flags = ("-Xmx1g",) if is_measured else (*FLAGS, "-Xmx2g")
        options = [*flags, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
        port, token = launch_gateway(
            jarpath=str(py4j_jar()),
            classpath=str(jars / "*"),
            javaopts=options,
            java_path=java(),
            die_on_exit=True,
            enable_auth=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self.java = JavaGateway(gateway_parameters=parameters)
        self.java.set_gateway_client(_Client(gateway_parameters=parameters))
        self.jvm: Any = self.java.jvm
        # Scala keeps the stream that it finds first, so there is one for good.
        self._printed = self.jvm.java.io.ByteArrayOutputStream()
        self.jvm.java.lang.System.setOut(self.jvm.java.io.PrintStream(self._printed, True))

    def run(self, main: str, *arguments: str) -> str:
        """Run the main method of a class, and return its output."""
        self._printed.reset()
        strings = self.java.new_array(self.jvm.java.lang.String, len(arguments))
        for i, argument in enumerate(arguments):
            strings[i] = argument
        entry = self.jvm
        for name in main.split("."):
            entry = getattr(entry, name)
        entry.main(strings)
        return str(self._printed.toString())


@functools.cache
def gateway(jars: Path) -> Gateway:
    """The JVM of one version, started at its first use."""
    return Gateway(jars)
