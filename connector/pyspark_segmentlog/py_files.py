"""Make a wheel on ``--py-files`` available to Spark's workers."""

import functools
import shutil
import tempfile
import zipimport
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Archives that Spark puts on its workers' paths (``SparkContext.PACKAGE_EXTENSIONS``).
_SHIPPED = (".zip", ".egg", ".jar")


def ship_wheel(spark: "SparkSession") -> None:
    """Put this package on the path of Spark's workers, if it was loaded from a wheel."""
    # ``spark-submit --py-files`` accepts a wheel, copies it to every machine, and the driver can
    # import it. But only archives with three other extensions get on the workers' path.
    archive = _archive()
    if archive is not None and archive.suffix.lower() not in _SHIPPED:
        spark.addArtifacts(str(_as_zip(archive)), pyfile=True)


def _archive() -> Path | None:
    """The archive from which this package was imported."""
    loader = globals().get("__loader__")
    return Path(loader.archive) if isinstance(loader, zipimport.zipimporter) else None


@functools.cache
def _as_zip(archive: Path) -> Path:
    """A copy under a name that Spark takes; executors may ask for it until the driver ends."""
    directory = Path(_copies().name)
    return Path(shutil.copy(archive, directory / f"{archive.name}.zip"))


@functools.cache
def _copies() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="segmentlog-")
