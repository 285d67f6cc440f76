"""Print requirements that pin packages to the lowest version that `pyproject.toml` promises.

``pip install '.[test]' $(python tests/support/lowest_versions.py numpy pyarrow)``; patch releases
are free.
"""

import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

for requirement in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["spark"]]:
    name, _, lowest = requirement.partition(">=")
    if name in sys.argv[1:]:
        print(f"{name}=={lowest}.*")
