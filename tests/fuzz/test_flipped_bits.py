"""A flipped bit in any file: all rows, an error, or, with `skip`, all but the damaged batch's."""

import os
import random
from pathlib import Path

import pytest
from flipping import LOGS, flips_of, is_hidden, plant, wrong_reads

N_FLIPS = 6


def seed() -> int:
    """CI flips the same bits each time, other runs flip new ones."""
    return 0 if os.environ.get("CI") == "true" else random.SystemRandom().randrange(10**9)


@pytest.mark.parametrize("name", LOGS)
def test_a_flipped_bit_changes_no_rows_in_silence(tmp_path: Path, name: str) -> None:
    """Random bits of a random form of each log, read in two of the ways."""
    number = seed()
    rng = random.Random(number)
    log = plant(tmp_path, name, has_indexes=rng.random() < 0.5, has_checkpoints=rng.random() < 0.7)
    kinds = flips_of(log)
    for _ in range(N_FLIPS):
        flip = rng.choice(rng.choice(kinds))
        wrong = [] if is_hidden(log, flip) else wrong_reads(log, flip, rng, 2)
        assert [] == wrong, (number, flip.path.name, flip.byte, flip.bit, log.has_checkpoints)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("has_checkpoints", [True, False])
@pytest.mark.parametrize("has_indexes", [True, False])
@pytest.mark.parametrize("name", LOGS)
def test_each_bit_of_each_header(
    tmp_path: Path, name: str, *, has_indexes: bool, has_checkpoints: bool
) -> None:
    """All bits of headers and indexes, and one bit of each other byte, read in three ways."""
    log = plant(tmp_path, name, has_indexes=has_indexes, has_checkpoints=has_checkpoints)
    rng = random.Random(0)
    for kind in flips_of(log):
        for flip in kind:
            if (flip.at >= 61 and flip.bit != flip.byte % 8) or is_hidden(log, flip):
                continue
            wrong = wrong_reads(log, flip, rng, 3)
            assert [] == wrong, (flip.path.name, flip.byte, flip.bit)
