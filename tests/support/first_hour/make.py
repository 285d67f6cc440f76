"""Make transcripts of the first hour again.

``python tests/support/first_hour/make.py [PART ...]``; a part is named as its transcript is.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from first_hour.bare import TOP, Bare, build_wheel
from first_hour.parts import PARTS, Hour

TRANSCRIPTS = TOP / "tests" / "architecture" / "first_hour"


def main(names: list[str]) -> None:
    """Make the named transcripts, or all of them."""
    with tempfile.TemporaryDirectory(prefix="first-hour-") as scratch:
        at = Path(scratch)
        bare = Bare.make(at / "venv", build_wheel(at / "wheel"))
        for name in names or PARTS:
            hour = Hour.begin(bare, at / name)
            (TRANSCRIPTS / f"{name}.txt").write_text(PARTS[name](hour))
            print(TRANSCRIPTS / f"{name}.txt")


if __name__ == "__main__":
    main(sys.argv[1:])
