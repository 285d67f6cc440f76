"""Code that a new interpreter runs, because it may crash, or needs other settings."""

import os
import subprocess
import sys


def run(code: str, **variables: str) -> str:
    """The output of a new interpreter for `code`, in which a warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.strip()
