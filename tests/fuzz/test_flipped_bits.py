"""A read with a flipped bit gives all rows or an error.

With `skip`, only the damaged batch is missing.
"""

import os
import random
from pathlib import Path

import pytest
from flipping import INDEXED, LOGS, Flip, flips_of, is_hidden, plant, wrong_look_ups, wrong_reads

import segmentlog
from segmentlog.errors import CorruptLogError

N_FLIPS = 6


def seed() -> int:
    """CI flips the same bits in each run. Other runs flip new ones."""
    return 0 if os.environ.get("CI") == "true" else random.SystemRandom().randrange(10**9)


@pytest.mark.parametrize("name", LOGS)
def test_a_flipped_bit_changes_no_rows_in_silence(tmp_path: Path, name: str) -> None:
    """Random bits of each log are flipped, with or without its indexes.

    Each log is read in two ways.
    """
    number = seed()
    rng = random.Random(number)
    log = plant(tmp_path, name, has_indexes=rng.random() < 0.5, has_checkpoints=rng.random() < 0.7)
    kinds = flips_of(log)
    for _ in range(N_FLIPS):
        flip = rng.choice(rng.choice(kinds))
        wrong = [] if is_hidden(log, flip) else wrong_reads(log, flip, rng, 2)
        assert [] == wrong, (number, flip.path.name, flip.byte, flip.bit, log.has_checkpoints)


#: Bits with which a start was confirmed by the entry's own batch alone.
SHOWN = {
    "rising": [("00000000000000000000.index", 199), ("00000000000000000056.index", 221)],
    "equal": [("00000000000000000000.timeindex", 92), ("00000000000000000000.timeindex", 93)],
    "rising and falling": [("00000000000000000000.index", 221)],
    "rising now and then": [
        ("00000000000000000056.timeindex", 91),
        ("00000000000000000056.timeindex", 92),
    ],
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_is_a_hint(tmp_path: Path, name: str) -> None:
    """Random bits of indexes are flipped; reads from offsets and times find all rows."""
    number = seed()
    log = plant(tmp_path, name, has_indexes=True, has_checkpoints=True)
    shown = [Flip(log.partition / each, bit // 8, bit % 8) for each, bit in SHOWN[name]]
    for flip in [*shown, *random.Random(number).sample(flips_of(log)[-1], 4)]:
        assert [] == wrong_look_ups(log, flip), (number, flip.path.name, flip.byte, flip.bit)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("has_checkpoints", [True, False])
@pytest.mark.parametrize("name", INDEXED)
def test_each_bit_of_each_index(tmp_path: Path, name: str, *, has_checkpoints: bool) -> None:
    """The indexes of a closed and of the active segment, one of them preallocated."""
    log = plant(tmp_path, name, has_indexes=True, has_checkpoints=has_checkpoints)
    for path in log.partition.glob("*56.*index"):
        path.write_bytes(path.read_bytes() + bytes(24))
    for flip in flips_of(log)[-1]:
        assert [] == wrong_look_ups(log, flip), (flip.path.name, flip.byte, flip.bit)


@pytest.mark.parametrize("name", ["v0 none", "v1 none", "v2 none"])
def test_two_equal_offsets_at_the_end_of_a_log(tmp_path: Path, name: str) -> None:
    """The batch before the last one has the offset of the last one, and is left out.

    The last message of magic 0 or 1 has fewer bytes than the header of a batch.
    """
    log = plant(tmp_path, name, has_indexes=True, has_checkpoints=True)
    segment = max(log.segments)
    batch = log.segments[segment][-2]
    (flip,) = [
        each
        for kind in flips_of(log)
        for each in kind
        if each.batch is batch and (each.at, each.bit) == (7, 0)
    ]
    wrong = [] if is_hidden(log, flip) else wrong_reads(log, flip, random.Random(0), 3)

    assert [] == wrong


def test_zeros_that_give_a_message_the_offset_of_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No checksum covers the offset of the last message, and no offset is left for the others."""
    log = plant(tmp_path, "v0 none", has_indexes=False, has_checkpoints=True)
    path = log.partition / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[5:150] = bytes(145)
    path.write_bytes(data)
    opened = segmentlog.open_log_dir(log.directory).log("t", 0)

    for start in (0, 2):
        with pytest.raises(CorruptLogError):
            opened.scan(start, 5).read_all()
        caplog.clear()
        opened.scan(start, 5, on_corrupt_batch="skip").read_all()
        assert any("bytes [0, 140) are left out" in each for each in caplog.messages)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("has_checkpoints", [True, False])
@pytest.mark.parametrize("has_indexes", [True, False])
@pytest.mark.parametrize("name", LOGS)
def test_each_bit_of_each_header(
    tmp_path: Path, name: str, *, has_indexes: bool, has_checkpoints: bool
) -> None:
    """Every bit of headers and indexes is flipped, and one bit of each other byte.

    Each log is read in three ways. All bits take hours; with `FLIPS_EVERY` in the environment, one
    bit in this number is flipped.
    """
    log = plant(tmp_path, name, has_indexes=has_indexes, has_checkpoints=has_checkpoints)
    rng = random.Random(0)
    for kind in flips_of(log):
        for flip in kind[:: int(os.environ.get("FLIPS_EVERY", "1"))]:
            if (flip.at >= 61 and flip.bit != flip.byte % 8) or is_hidden(log, flip):
                continue
            wrong = wrong_reads(log, flip, rng, 3)
            assert [] == wrong, (flip.path.name, flip.byte, flip.bit)
