"""The script ``segmentlog``; Ctrl-C is quiet from its first import on.

It is beside the package: the import of a module of the package imports the package first, which
takes most of the time.
"""

import sys

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
