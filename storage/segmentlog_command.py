"""The script ``segmentlog``; Ctrl-C is quiet from its first import on.

It is beside the package: the import of a module of the package imports the package first, which
takes most of the time.
"""

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    try:
        from segmentlog.tools.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
