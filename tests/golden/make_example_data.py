"""Make ``examples/data`` with a real broker, and the manifest beside it.

Run from the top of the checkout: ``python tests/golden/make_example_data.py``.
"""

import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "support"))

from kafka_here import Broker, JavaClient  # noqa: E402
from kafka_here.golden import checksums, copy_log_dir  # noqa: E402
from kafka_here.java import Outgoing  # noqa: E402

VERSION = "4.3.1"
FIRST_MS = 1_760_000_000_000  # 2025-10-09 08:53:20 UTC
DAY_MS = 86_400_000

MANIFEST = """# Where `data/` comes from

`data/` is the log directory of an unmodified Apache Kafka {version} broker (one KRaft node). The
broker was stopped cleanly. `tests/golden/make_example_data.py` makes `data/` again, with the same
offsets and bytes of records, but with other ids and other times of transaction markers. The log
`__cluster_metadata-0` is left out, because it is large, and readers of topics do not need it.

| topic | partitions | contents |
|---|---|---|
| `orders` | 3 | 900 orders over three days, with keys, values in JSON and a header; zstd |
| `payments` | 1 | one committed and one aborted transaction of 60 payments each; lz4 |
| `customers` | 1 | 40 customers with tombstones; `cleanup.policy=compact`; uncompressed |

Kafka's Java producer of the same version wrote all records.

`checkpoint/` is the checkpoint of a streaming query with Spark's `kafka` source, which was stopped
after it had read two thirds of `orders` from such a broker.
`tests/golden/make_example_checkpoint.py` makes it again.

`cluster/` is the log directory of another such broker, which was stopped while consumers were
connected and a transaction was open. It contains the broker's internal topics and the metadata of
its cluster. `tests/golden/make_example_cluster.py` makes it again.

`tier/` contains the log directory and the tier of a broker whose tiered storage is Kafka's own
`LocalTieredStorage`. `tests/golden/make_example_tier.py` makes both again.

`brokers/` contains the log directories of the three brokers of one cluster, without index files.
The brokers were killed one after the other. `tests/golden/make_example_brokers.py` makes the
directories again.

<!-- files:begin -->
| file | bytes | sha256 |
|---|---|---|
{rows}
<!-- files:end -->
"""


def orders() -> list[Outgoing]:
    """Nine hundred orders, one every few minutes."""
    found = []
    for i in range(900):
        customer = f"customer-{i * 7 % 40:02d}"
        value = f'{{"order":{i},"customer":"{customer}","cents":{(i * 7919) % 50_000 + 99}}}'
        source = (("source", b"web" if i % 3 else b"shop"),)
        at = FIRST_MS + i * (3 * DAY_MS // 900)
        found.append(Outgoing(customer.encode(), value.encode(), source, at))
    return found


def payments() -> list[Outgoing]:
    """Sixty payments; sent once in a transaction that commits and once in one that aborts."""
    return [
        Outgoing(
            f"order-{i}".encode(), f'{{"paid":{i}}}'.encode(), (), FIRST_MS + DAY_MS + i * 1000
        )
        for i in range(60)
    ]


def customers() -> list[Outgoing]:
    """Three updates of each of forty customers, and tombstones for every tenth."""
    found = []
    for version in range(3):
        for i in range(40):
            at = FIRST_MS + version * DAY_MS + i
            key, value = f"customer-{i:02d}", f'{{"name":"Customer {i}","version":{version}}}'
            gone = version == 2 and i % 10 == 0
            found.append(Outgoing(key.encode(), None if gone else value.encode(), (), at))
    return found


def main() -> None:
    """Run a broker, produce, stop it, and copy its directory."""
    target = TOP / "examples" / "data"
    with tempfile.TemporaryDirectory() as scratch:
        broker = Broker(Path(scratch), VERSION)
        with broker, JavaClient(broker) as client:
            keep = {"retention_ms": -1}
            client.create_topic("orders", 3, compression_type="producer", **keep)
            client.produce("orders", orders(), compression_type="zstd", batch_size=8192)
            client.create_topic("payments", 1, **keep)
            client.produce(
                "payments", payments(), transactions=["commit", "abort"], compression_type="lz4"
            )
            client.create_topic(
                "customers",
                1,
                cleanup_policy="compact",
                segment_ms=1000,
                min_cleanable_dirty_ratio=0.01,
            )
            client.produce("customers", customers(), batch_size=1024)
            client.wait_until_compacted(broker.log_dir / "customers-0", fewer_than=60)
        copy_log_dir(broker.log_dir, target, ["__cluster_metadata-0"])
    (TOP / "examples" / "MANIFEST.md").write_text(
        MANIFEST.format(version=VERSION, rows=rows_of_files(target))
    )


def rows_of_files(target: Path) -> str:
    """The manifest's table of files."""
    return "\n".join(
        f"| `{path}` | {size} | `{digest}` |" for path, (size, digest) in checksums(target).items()
    )


if __name__ == "__main__":
    main()
