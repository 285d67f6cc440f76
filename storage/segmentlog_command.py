"""The script ``segmentlog``; Ctrl-C is quiet from its first import on.

It is beside the package: the import of a module of the package imports the package first, which
takes most of the time.
"""

import importlib.metadata
import importlib.util
import re
import sys

_DISTRIBUTION = "pyspark-segmentlog"
_INTERRUPTED = 130


class _NoPandas:
    """Hides pandas, which pyarrow imports with its first array if it is there.

    That takes longer than most commands, and serves none.
    """

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def main() -> None:
    """Run the command line and exit."""
    if sys.argv[1:2] != ["audit"]:  # libraries of tables may need pandas
        sys.meta_path.insert(0, _NoPandas())
    try:
        from segmentlog.tools.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except ModuleNotFoundError as error:
        missing = _missing()
        if error.name not in missing:
            raise
        # After `pip install --no-deps`, or where Spark unpacks the wheel.
        names = " ".join(missing)
        # `pip freeze` names the files of what was installed from files, which may be gone.
        remedy = "pip list --format=freeze > present.txt && pip install"
        remedy = f"{remedy} {names} --constraint present.txt"
        sys.exit(f"segmentlog: {sys.executable} lacks {names}: {remedy}")


def _missing() -> list[str]:
    """The requirements of the package that cannot be imported: their modules have their names."""
    try:
        required = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    names = [re.split(r"[^\w-]", each)[0] for each in required if "extra ==" not in each]
    return [each for each in names if importlib.util.find_spec(each) is None]
