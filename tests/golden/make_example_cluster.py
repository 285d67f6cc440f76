"""Make ``examples/cluster`` with a real broker.

Run from the top of the checkout: ``python tests/golden/make_example_cluster.py``.
"""

import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "support"))

from kafka_here import Broker, JavaClient  # noqa: E402
from kafka_here.golden import copy_log_dir  # noqa: E402
from kafka_here.internals import SETTINGS, left_open  # noqa: E402

VERSION = "4.3.1"


def main() -> None:
    """Run a broker, fill it, stop it while its clients are connected, and copy its directory."""
    target = TOP / "examples" / "cluster"
    with tempfile.TemporaryDirectory() as scratch:
        broker = Broker(Path(scratch), VERSION, settings=SETTINGS)
        try:
            with JavaClient(broker.start()) as client, left_open(broker, client):
                broker.stop()
        finally:
            broker.kill()
        copy_log_dir(broker.log_dir, target, ["*-delete"])
    for path in target.rglob("*.checkpoint"):
        path.chmod(0o644)  # Kafka makes them readable by their owner alone


if __name__ == "__main__":
    main()
