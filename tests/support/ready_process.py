"""Scripts that each run in a process of their own, forked from one that has imported the engine.

The import takes most of a second of processor time.  Run as a program, this takes scripts with
their arguments and variables (JSON, one a line), and prints how each has ended.
"""

import atexit
import ctypes
import functools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_NEW_MOUNTS = 0x20000  # CLONE_NEWNS


def in_own_mounts(code: str, arguments: Sequence[object]) -> str:
    """The output of a script with mounts of its own."""
    process = _ready()
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([code, [*map(str, arguments)], dict(os.environ)]), file=process.stdin)
    process.stdin.flush()
    status, output, errors = json.loads(process.stdout.readline())
    assert status == 0, errors
    return str(output)


@functools.cache
def _ready() -> "subprocess.Popen[str]":
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, __file__]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": paths},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(process.communicate)  # it ends with its input
    return process


def _serve() -> None:
    import segmentlog

    for name in segmentlog.__all__:
        getattr(segmentlog, name)
    for line in sys.stdin:
        files = [os.memfd_create(name) for name in ("output", "errors")]
        child = os.fork()
        if not child:
            _run(files, *json.loads(line))
        _, status = os.waitpid(child, 0)
        texts = []
        for each in files:
            os.lseek(each, 0, os.SEEK_SET)
            with open(each, encoding="utf-8") as file:
                texts.append(file.read())
        print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)


def _run(
    files: Sequence[int], code: str, arguments: Sequence[str], variables: dict[str, Any]
) -> NoReturn:
    status = 1
    try:
        with open(os.devnull) as nothing:
            for number, each in enumerate((nothing.fileno(), *files)):
                os.dup2(each, number)
        os.environ.clear()
        os.environ.update(variables)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_NEW_MOUNTS):
            raise OSError(ctypes.get_errno(), "unshare")
        sys.argv[1:] = arguments
        exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})
        status = 0
    except BaseException:  # noqa: BLE001 - also of `sys.exit`, which no script calls
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
