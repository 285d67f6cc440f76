"""``MANIFEST.toml``: golden data, with how it was made, and the digests of all of its files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

MANIFEST = Path(__file__).parents[1] / "golden" / "MANIFEST.toml"

_ABOUT = """# Log directories of unmodified Apache Kafka brokers, each stopped cleanly.
#
# `make_golden.py` makes them again, with the Java clients of the same version. Beside each stands
# what that broker's own consumer returned: `<directory>.expected.json`. Partitions of the broker's
# internal topics and of the cluster's metadata are left out; top-level files still name them.
#
# Archives have directories of segmentlog's own that the commit in their names has left, some of
# them killed. `make_written.py` makes them with the code of that commit.
"""


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_manifest(parts: Mapping[str, Mapping[str, object]]) -> None:
    """Write TOML, by hand: Python reads it but does not write it."""
    text = _ABOUT
    for name, part in sorted(parts.items()):
        text += f'\n["{name}"]\n'
        tables = {key: each for key, each in part.items() if isinstance(each, Mapping)}
        text += "".join(f'{key} = "{part[key]}"\n' for key in part if key not in tables)
        for key, table in tables.items():
            text += f'\n["{name}".{key}]\n'
            text += "".join(f'"{one}" = {json.dumps(each)}\n' for one, each in table.items())
    MANIFEST.write_text(text)
