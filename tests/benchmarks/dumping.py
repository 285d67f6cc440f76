"""A dump of records as JSON: whole batches at once, against rows one by one and against a scan.

Escapes bound both: half of each value of the log is random bytes, and one row at a time, a Python
function writes each unprintable character (`segmentlog.tools.text.to_json`).  The ratio is smaller
for values that are text.
"""

import sys
from pathlib import Path

from measure import Digest, Row, compare

import segmentlog
from segmentlog.tools import sinks
from segmentlog.tools.dump import dump_paths
from segmentlog.tools.rows import RecordText
from segmentlog.tools.selection import Selection

__all__ = ["json_lines"]

_N_ROWS = 100_000  # rows one by one take minutes for more of them


def json_lines(log: segmentlog.Log, rounds: int) -> Row:
    """The row of the table."""
    end = min(_N_ROWS, log.log_end_offset)
    selection = Selection(to_offset=end)

    def scanned() -> int:
        return sum(batch.num_rows for batch in log.scan(end_offset=end, include_headers=True))

    n_rows = scanned()

    def dumped(rows_before_kernel: int) -> Digest:
        sinks._ROWS_BEFORE_KERNEL = rows_before_kernel
        n_lines = 0

        def write(text: str) -> None:
            nonlocal n_lines
            n_lines += text.count('{"kind": "record"')

        dump_paths([log.path], sinks.JsonSink(write, RecordText()), selection, with_records=True)
        return (n_lines,)

    results = compare(
        {
            "whole batches": lambda: dumped(0),
            "rows": lambda: dumped(2**62),
            "scan": lambda: (scanned(),),
        },
        rounds,
    )
    seconds = {name: found.median for name, found in results.items()}
    ratio = seconds["rows"] / seconds["whole batches"]
    rate = n_rows / seconds["whole batches"] / 1e6
    detail = (
        f"{rate:.1f} M records/s; {n_rows:,} rows, half of each value random bytes, which one row "
        "at a time are escaped by Python, character by character; a scan takes "
        f"{seconds['scan'] / seconds['whole batches']:.0%} of the time; "
        f"±{results['whole batches'].spread:.0%}, ±{results['rows'].spread:.0%}"
    )
    return Row("dump records as JSON", "a Python object for each", "≥ 3", f"{ratio:.1f}", detail)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    print(json_lines(segmentlog.open_log_dir(path).log("t", 0), 3))
