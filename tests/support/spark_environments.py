"""Environments with other versions of pyspark, and everything else of the running one.

``python tests/support/spark_environments.py 4.1.1 DIRECTORY`` makes one, and prints its Python.
"""

import fcntl
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

#: Versions that platforms run, beside the newest.
VERSIONS = ("4.0.1", "4.1.1", "4.2.0")


def python_with(version: str, directory: Path | None = None) -> Path:
    """A Python with a version of pyspark; the tests keep it in their cache.

    `directory`: where to make it instead.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "segmentlog-tests")
    environment = directory or cache / f"pyspark-{version}-{sysconfig.get_python_version()}"
    environment.parent.mkdir(parents=True, exist_ok=True)
    with (environment.parent / f"{environment.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = environment / "bin" / "python"
        if not (environment / "made").exists():
            venv.create(environment, clear=True, symlinks=True)
            install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
            subprocess.run([*install, f"pyspark=={version}"], check=True, timeout=1200)
            (environment / "made").touch()
        # Its own packages have precedence over those of this process.
        site = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        others = sys.path[sys.path.index(sysconfig.get_path("purelib")) :]
        Path(site.stdout.strip(), "_others.pth").write_text("\n".join(others))
    return python


if __name__ == "__main__":
    print(python_with(sys.argv[1], Path(sys.argv[2])))
