"""Random sequences of operations are cut off anywhere, and the directory agrees with a model.

A failure prints the shortest sequence that still fails. The printed line can be played again::

    SEQUENCE='append:12 compact:7!dies@31' pytest -n0 tests/crash/test_sequences.py -k given
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from random_operations.operations import OPERATIONS
from random_operations.playing import BrokenSequenceError, draw, parse, play, shortened

_SEED = int(os.environ.get("SEQUENCE_SEED", "1"))
#: Duration of the slow test.
_SECONDS = float(os.environ.get("SEQUENCE_SECONDS", "3600"))
_LENGTH = int(os.environ.get("SEQUENCE_LENGTH", "25"))

#: Sequences that earlier versions of the engine, or of the model, failed.
_FAILED = [
    # A mirror brought back records of a deletion whose commit was unfinished.
    "repeat:91915 mirror:119947 overwrite:310016 delete_records:241326!broken@15 mirror:963920",
    "preserve:252368 retain:378597!power@25 mirror:826653",
    # While a mirror that cuts off and exchanges is unfinished, readers see old rows, cut off.
    "retain:410393 mirror:745915 delete_records:180690 compact:468482 mirror:191649!dies@55+",
    (
        "powered:0 erase:396117 produce:464485 append:125367!power@37+ mirror:418305 erase:147891 "
        "erase:936110 mirror:82445!power@108"
    ),
    # … or only those before the first that differs, where both have records at the same offsets.
    (
        "preserve:460124 mirror:205463 produce:200893 fail_over:427293 append_large:654499 "
        "mirror:429946!power@48"
    ),
    # A compaction that failed had set no time from which tombstones go; the next one set an
    # earlier one.
    (
        "append:546341 compact:349691!broken@12 compact:174812 append_to_both:453566 "
        "produce:397171 compact:132793"
    ),
    # A power cut takes a partition of a topic that a writer was making when it died; `restore`
    # refuses such a topic, as a broker's directory may be missing.
    "powered:0 delete_records:843987!dies@38+ restore:514243!power@19+",
    # A mirror that was killed before it made a topic leaves the directory of one partition;
    # a writer then took it for a topic of one.
    (
        "mirror:637173 fail_over:216516 append_large:206388 append:510440 mirror:865785!dies@58 "
        "fail_over:630118 retain:777199 lose_topic:236202"
    ),
    # An exchange of segments that was cut off, whose new ones have other records at the same
    # offsets: readers took old ones for what follows them.
    (
        "powered:0 erase:516080 lose_topic:131505 wait:666551 append:812983 mirror:852047 "
        "append_to_both:539377!power@4+ repeat:672855 erase:652305 overwrite:523785!eio@37 "
        "number:358041 overwrite:824086 mirror:506909!power@137+"
    ),
    # A numbered write counted as done in a topic that a broker had deleted: of the topic in its
    # place, only an empty log without an id was there.
    (
        "produce:140368 reindex:183977 number:59968 lose_topic:518133 overwrite:525603!full@8 "
        "reindex:511702 number:144430"
    ),
    # A sync failed after the renames of a retention.  The recovery found nothing to rename, and
    # synced nothing, so a power cut brought one of the names back.
    (
        "powered:0 mirror:747685 fail_over:7487 compact:566037 append:910431 reindex:686414 "
        "retain:240274!eio@40+ recover:383439!power@56"
    ),
    # A disk failed before the removal of a guard was synced.  A recovery found nothing to do, and
    # a power cut brought the guard back.
    (
        "powered:0 mirror:848403 delete_topic:506996!power@29 lose_topic:397786 recover:191264 "
        "overwrite:90080!broken@58 reindex:593160!power@36"
    ),
    # A restoration that was cut off had made one partition of a topic that had lost its other one
    # when it was repeated; nothing showed how many the topic was to have.
    (
        "powered:0 lose_topic:657718 erase:728926!full@26+ restore:42600!power@53+ "
        "append_large:66831"
    ),
    # A recovery made a log in the copies of a mirror that was killed, and so a topic of one
    # partition.
    (
        "mirror:637173 fail_over:216516 append_large:206388 append:510440 mirror:865785!dies@58 "
        "fail_over:630118 recover:1 retain:777199"
    ),
]


def drawn(seed: int) -> Counter[str]:
    """Play one sequence. A failure is shortened before it is raised."""
    counts = Counter[str]()
    try:
        draw(random.Random(seed), _LENGTH, counts)
    except BrokenSequenceError as error:
        short = shortened(error)
        message = f"seed {seed}: {short}"
        raise AssertionError(message) from short
    return counts


@pytest.mark.parametrize("seed", range(_SEED, _SEED + 5))
def test_a_directory_is_what_the_model_says(seed: int) -> None:
    """The directory is compared after each operation, whether it was done, refused or cut off."""
    assert drawn(seed).total() >= _LENGTH


@pytest.mark.parametrize("steps", _FAILED)
def test_a_sequence_that_has_failed(steps: str) -> None:
    """It fails no more."""
    play(parse(steps))


def test_a_given_sequence() -> None:
    """The printed line of a failure is played again."""
    play(parse(os.environ.get("SEQUENCE", "append:1 compact:2 append:3")))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_directory_is_what_the_model_says_for_hours(say: Callable[[str], None]) -> None:
    """Further seeds are played until the time is over."""
    counts, seed = Counter[str](), _SEED
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        counts += drawn(seed)
        seed += 1
    say(f"{seed - _SEED:,} sequences from seed {_SEED}: {dict(counts)}")

    assert all(counts[name] for name in OPERATIONS)
