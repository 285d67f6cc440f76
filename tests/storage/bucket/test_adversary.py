"""A log in a store that everybody uses at once: wrong clocks, kills, sleep, and a bad store."""

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest
from bucket_adversary import Adversary
from latent_store import LatentServer

#: How long the slow test takes, and with which dice.
_SECONDS = float(os.environ.get("BUCKET_SECONDS", "900"))
_SEED = int(os.environ.get("BUCKET_SEED", "1"))

#: Seconds of a world, and of the longest sleep of a process in it.
_OF_WORLD, _LONGEST_SLEEP = 180.0, 150.0


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_everybody_at_once(say: Callable[[str], None]) -> None:
    """Worlds are played until the time is over (`BUCKET_SECONDS`, `BUCKET_SEED`)."""
    counts, seed, ends = Counter[str](), 1_000 * _SEED, time.monotonic() + _SECONDS
    with LatentServer() as server:
        while (left := ends - time.monotonic()) > 0:
            world = Adversary(seed, server, min(left, _OF_WORLD), _LONGEST_SLEEP)
            try:
                world.play(n_writers=seed % 4 + 3)
            except BaseException as error:
                error.add_note(f"seed {seed}, after {dict(sorted(world.counts.items()))}")
                raise
            counts += world.counts
            seed += 1
    say(f"{seed - 1_000 * _SEED} worlds: {dict(sorted(counts.items()))}")
    for name in ("write: killed", "keep up: done", "mirror up: done", "mirror down: done"):
        assert counts[name], name
    assert counts["writes in commits of others"]
