"""Inputs of the coverage-guided fuzzer, in one archive because they are many and tiny."""

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus.zip"

_LONG_AGO = (1980, 1, 1, 0, 0, 0)


def read_corpus() -> list[bytes]:
    """All inputs, in the order of their checksums."""
    if not CORPUS.exists():
        return []
    with zipfile.ZipFile(CORPUS) as archive:
        return [archive.read(name) for name in archive.namelist()]


def write_corpus(inputs: Iterable[bytes]) -> None:
    """Replace the archive; equal inputs give equal bytes."""
    by_name = {hashlib.sha256(data).hexdigest()[:16]: data for data in inputs}
    with zipfile.ZipFile(CORPUS, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(by_name.items()):
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), data, zipfile.ZIP_DEFLATED)
