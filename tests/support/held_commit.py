"""A job in a separate process, which stops in the middle of its commit until it gets a word.

Run as a program, this takes lines: a directory, a job, and how to write it (JSON).  It prints
``held`` once everything is appended and nothing is decided, and takes a word: ``go`` or ``fail``.
"""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from numbered_jobs import Job

import segmentlog
from segmentlog.format.topic_config import TopicConfig
from segmentlog.txn.state import STATE_FILE


def config_of(
    segment_bytes: int = 1 << 30, batch_size: int = 1 << 17
) -> segmentlog.ProducerConfig:
    """The config of the jobs here: an index entry for each batch."""
    topic_config = TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=1)
    return segmentlog.ProducerConfig(topic_config, batch_size=batch_size, use_timestamps=True)


def write_job(directory: Path, job: Job, *, overwrite: bool = False, **sizes: int) -> None:
    """Write one job in this process; missing topics are made."""
    only = next(iter(job.topics)) if len(job.topics) == 1 else None
    with segmentlog.open_writer(
        directory,
        only,
        num_partitions=max(job.topics.values()),
        config=config_of(**sizes),
        overwrite=overwrite,
    ) as writer:
        writer.append(job.rows())


def around_decision(
    before: Callable[[], object], after: Callable[[], object] = lambda: None
) -> None:
    """Call two functions, one right before each decision of this process, one right after it.

    The decision is the rename of a file to ``segmentlog.state``, whatever the code around it.
    """
    for name in ("replace", "rename"):
        setattr(os, name, _wrapped(getattr(os, name), before, after))


def _wrapped(
    real: Callable[..., None], before: Callable[[], object], after: Callable[[], object]
) -> Callable[..., None]:
    def call(source: Any, target: Any, **keywords: Any) -> None:
        is_replaced = os.fsdecode(source).endswith(".tmp")  # the first commit makes the file
        is_decision = Path(os.fsdecode(target)).name == STATE_FILE and not is_replaced
        if is_decision:
            before()
        real(source, target, **keywords)
        if is_decision:
            after()

    return call


class HeldCommit:
    """A commit that is held in its middle; the end of a ``with`` block kills its process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._is_held = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_held:
            self.kill()

    def decide(self) -> None:
        """Let the commit take place; return when the job is acknowledged."""
        self._answer("go", "acknowledged\n")

    def fail(self) -> None:
        """Let the commit fail, and undo its appends."""
        self._answer("fail", "undone\n")

    def kill(self) -> None:
        """Kill its process."""
        self._is_held = False
        self._process.kill()
        self._process.communicate()

    def _answer(self, word: str, expected: str) -> None:
        self._is_held = False
        assert expected == _ask(self._process, word)


class Holder:
    """Processes whose commits are held, one at a time, during a ``with`` block."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def hold(
        self, directory: Path, job: Job, *, overwrite: bool = False, **sizes: int
    ) -> HeldCommit:
        """Begin a job as `write_job` does, and hold it when everything is appended."""
        if self._process is None or self._process.returncode is not None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        how = {
            "directory": str(directory),
            "job": asdict(job),
            "sizes": sizes,
            "overwrite": overwrite,
        }
        assert _ask(self._process, json.dumps(how)) == "held\n"
        return HeldCommit(self._process)


def _ask(process: "subprocess.Popen[str]", line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def _hold() -> None:
    print("held", flush=True)
    if sys.stdin.readline() == "fail\n":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write(directory: str, job: dict[str, Any], sizes: dict[str, Any], **more: bool) -> None:
    try:
        write_job(Path(directory), Job(**job), **more, **sizes)
        print("acknowledged", flush=True)
    except OSError:
        print("undone", flush=True)


if __name__ == "__main__":
    around_decision(_hold)
    while line := sys.stdin.readline():
        _write(**json.loads(line))
