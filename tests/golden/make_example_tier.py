"""Make ``examples/tier`` with a real broker.

Run from the top of the checkout: ``python tests/golden/make_example_tier.py``.
"""

import shutil
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "support"))

from kafka_here import Broker, JavaClient  # noqa: E402
from kafka_here.artifacts import tier_jars  # noqa: E402
from kafka_here.golden import copy_log_dir  # noqa: E402
from kafka_here.java import Outgoing  # noqa: E402
from kafka_here.tiered import tiered_settings, wait_for_local_start  # noqa: E402

VERSION = "4.3.1"
_FIRST_MS = 1_760_000_000_000  # 9 October 2025


def main() -> None:
    """Fill a topic of which only the newest segments stay on the broker's disk."""
    target = TOP / "examples" / "tier"
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        tier = Path(scratch, "tier")
        broker = Broker(
            Path(scratch, "kafka"),
            VERSION,
            settings=tiered_settings(tier),
            libraries=[tier_jars(VERSION)],
        )
        with broker, JavaClient(broker) as client:
            client.create_topic(
                "visits",
                remote_storage_enable="true",
                local_retention_bytes=1,
                retention_ms=-1,
                internal_segment_bytes=4_000,
                index_interval_bytes=500,
            )
            for hour in range(12):
                records = [
                    Outgoing(
                        b"visitor-%02d" % (i % 17),
                        b'{"page":%d}' % (hour * 50 + i),
                        (),
                        _FIRST_MS + 3_600_000 * hour + 60_000 * i,
                    )
                    for i in range(50)
                ]
                client.produce("visits", records, batch_size=1000, compression_type="none")
            wait_for_local_start(broker, "visits", 400)
        copy_log_dir(broker.log_dir, target / "logs", ["*-delete", "__cluster_metadata-0"])
        for path in (target / "logs").rglob("*.deleted"):
            path.unlink()
        shutil.copytree(tier, target / "bucket")


if __name__ == "__main__":
    main()
