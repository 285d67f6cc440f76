"""A reader at random moments: ``checker DIRECTORY LEDGER HOW``; ends with its standard input.

It knows the last value of each key, and what retention may remove.  A read that does not fit is
noted as ``bad``.
"""

import json
import random
import select
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from stressing.ledger import Ledger

import segmentlog
from segmentlog.errors import LogChangedError
from segmentlog.reads.log import Log
from soaking.history import History
from soaking.plan import PARTITIONS, Soak

__all__ = ["Checker", "last_values", "numbered"]

_KINDS = ("at once", "held", "dataset", "retained", "retained")


def last_values(tables: list[pa.Table]) -> dict[bytes, bytes | None]:
    """The last value of each key; a table is one partition, in the order of its offsets."""
    found: dict[bytes, bytes | None] = {}
    for each in tables:
        found.update(zip(each["key"].to_pylist(), each["value"].to_pylist(), strict=True))
    return found


def numbered(values: list[bytes]) -> dict[int, list[int]]:
    """Numbers of uncompacted records, by writer."""
    found: dict[int, list[int]] = {}
    for each in values:
        slot, number, _ = each.split(b"/", 2)
        found.setdefault(int(slot), []).append(int(number))
    return found


class Checker:
    """Reads of the whole directory.

    Parameters
    ----------
    directory : the log directory.
    ledger : what was committed, and what is found.
    run : the soak.
    rng : what comes when.
    """

    def __init__(self, directory: Path, ledger: Ledger, run: Soak, rng: random.Random) -> None:
        self._directory, self._ledger, self._run, self._rng = directory, ledger, run, rng
        self._history = History(run, ledger.path)
        self._seen: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        """Make one read."""
        kind = self._rng.choice(_KINDS)
        begun = time.monotonic()
        since = self._history.update()
        reads: dict[str, Callable[[dict[int, int]], str]] = {
            "at once": self._log, "held": self._held, "dataset": self._dataset,
            "retained": self._retained,
        }  # fmt: skip
        try:
            why = reads[kind](since)
        except LogChangedError as error:
            why = "" if self._is_overtaken(error) else str(error)
        # A plan counts for as long as removed files stay.
        is_late = time.monotonic() - begun >= 0.95 * self._run.delete_delay
        self.counts["reads that came too late"] += bool(why) and is_late
        if why and not is_late:
            self._ledger.note("bad", text=f"checker, {kind}: {why}")
        self.counts[f"reads, {kind}"] += 1

    def _is_overtaken(self, error: LogChangedError) -> bool:
        """Whether a pass or retention ran between the opening and the listing of a log."""
        if "compacted together with records" in str(error):
            self.counts["reads that a pass has overtaken"] += 1
            return True
        topic, _, partition = Path(error.path).name.rpartition("-")
        log = segmentlog.open_log_dir(self._directory).log(topic, int(partition))
        is_so = topic != "latest" and log.log_start_offset > error.next_offset
        self.counts["reads that retention has overtaken"] += is_so
        return is_so

    def _log(self, since: dict[int, int]) -> str:
        opened = segmentlog.open_log_dir(self._directory)
        return self._last_values([self._rows(opened.log("latest", p)) for p in range(4)], since)

    def _held(self, since: dict[int, int]) -> str:
        opened = segmentlog.open_log_dir(self._directory)
        patience = 0.5 * self._run.delete_delay
        if self._rng.random() < 0.5:
            time.sleep(self._rng.uniform(0, patience))
        logs = [opened.log("latest", p) for p in range(PARTITIONS["latest"])]
        scans = [each.scan(columns=["offset", "key", "value"]) for each in logs]
        time.sleep(self._rng.uniform(0, patience))
        return self._last_values([each.read_all() for each in scans], since)

    def _dataset(self, since: dict[int, int]) -> str:
        logs = segmentlog.dataset(self._directory, topics="latest")
        rows = logs.to_table(columns=["partition", "offset", "key", "value"])
        partitions = rows["partition"].to_numpy()
        tables = [rows.filter(pa.array(partitions == p)) for p in range(PARTITIONS["latest"])]
        return self._last_values(tables, since)

    def _last_values(self, tables: list[pa.Table], since: dict[int, int]) -> str:
        self._history.update()
        self.counts["records read"] += sum(len(each) for each in tables)
        for each in tables:
            if not (np.diff(each["offset"].to_numpy()) > 0).all():
                return "offsets do not rise"
        return self._history.misfit(last_values(tables), since)

    def _rows(self, log: Log) -> pa.Table:
        return log.scan(columns=["offset", "timestamp", "key", "value"]).read_all()

    def _retained(self, since: dict[int, int]) -> str:
        opened = segmentlog.open_log_dir(self._directory)
        for topic in ("sized", "timed"):
            for partition in range(PARTITIONS[topic]):
                why = self._retained_of(opened.log(topic, partition))
                if why:
                    return f"{topic}-{partition}: {why}"
        return ""

    def _retained_of(self, log: Log) -> str:
        """All records from the log start on, which retention may have moved up to there."""
        start, n_bytes = log.log_start_offset, sum(each.size for each in log.segments)
        rows, now_ms = self._rows(log), int(time.time() * 1000)
        offsets = rows["offset"].to_numpy()
        times = rows["timestamp"].cast("int64").to_numpy() // 1000
        self.counts["records read"] += len(rows)
        if len(rows) and (offsets[0] != start or not (np.diff(offsets) == 1).all()):
            return f"a gap after the start {start}"
        for slot, numbers in numbered(rows["value"].to_pylist()).items():
            if not (np.diff(numbers) == 1).all():
                return f"records of writer {slot} are missing, or come twice"
        before, then = self._seen.get(log.topic_partition, (offsets[:0], times[:0]))
        self._seen[log.topic_partition] = offsets, times
        end = int(offsets[-1]) + 1 if len(rows) else start
        if len(before) and end <= before[-1]:
            return f"it ends at {end}, and has held offset {before[-1]}"
        gone = then[before < start]
        self.counts["records that retention has removed"] += len(gone)
        if log.topic_partition.topic == "sized":
            if start and n_bytes < self._run.sized_bytes:
                return f"it begins at {start}, and only {n_bytes} bytes are left"
        elif len(gone) and gone.max() > now_ms - 1000 * self._run.timed_stay:
            return f"a record of {gone.max()} is gone at {now_ms}"
        return ""


def main(directory: Path, ledger: Ledger, run: Soak) -> None:
    """Read until standard input ends."""
    rng = random.Random(f"{run.seed} reads")
    checker = Checker(directory, ledger, run, rng)
    try:
        while not select.select([sys.stdin], [], [], rng.uniform(0, 2 * run.check_every))[0]:
            checker.step()
            ledger.note("checked", counts=dict(checker.counts))
            checker.counts.clear()
    except Exception:
        ledger.note("bad", text=f"the checker: {traceback.format_exc()}")
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), Ledger(Path(sys.argv[2])), Soak(**json.loads(sys.argv[3])))
