"""Several damages of one directory at once: the three commands agree about what is left."""

import shutil
from collections import Counter
from os.path import exists
from pathlib import Path

import pytest
from damaged_starts import damage, several, writable_copy

import segmentlog
from segmentlog import RecoveryKind, RecoveryStep, Severity, StartAction

CLUSTER = Path(__file__).parents[4] / "examples" / "cluster"

_MARKS = {RecoveryKind.MARKED_CLEAN, RecoveryKind.NOT_MARKED}


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(33, 34), id="one"),
        pytest.param(range(120), id="many", marks=pytest.mark.slow),
    ],
)
def test_what_is_not_mended_is_what_a_start_does_not_take(tmp_path: Path, seeds: range) -> None:
    """`verify` has an error for each harm of a start; `recover` mends it, or names it."""
    for seed in seeds:
        path = writable_copy(CLUSTER, tmp_path / str(seed))
        for each in path.glob("__*_*_*-?"):  # the broker's own topics are not damaged
            shutil.rmtree(each)
        cases = several(seed)
        for case in cases:
            damage(path, case)
        names = seed, *(each.name for each in cases)
        harm = _harm(path)
        errors = {each.path for each in segmentlog.verify(path) if each.severity == Severity.ERROR}
        assert harm <= errors, names

        planned = segmentlog.recover(path, dry_run=True)
        steps = segmentlog.recover(path)
        assert _told(planned) == _told(steps), names
        failed = any(each.kind is RecoveryKind.LOG_FAILED for each in steps)
        not_marked = {each.path for each in steps if each.kind is RecoveryKind.NOT_MARKED}
        assert failed or _harm(path) == not_marked, names
        if (path / ".kafka_cleanshutdown").exists():
            assert cases[0].is_clean or not (failed or not_marked), names
        else:
            assert failed or not_marked, names


def _harm(path: Path) -> set[str]:
    # A recovery looks for no logs of other directories.
    return {
        each.path
        for each in segmentlog.preflight(path)
        if each.has_harm and not (each.action == StartAction.UNSERVED and not exists(each.path))
    }


def _told(steps: list[RecoveryStep]) -> Counter[tuple[RecoveryKind, str, int]]:
    """The steps, but for the mark, which a dry run does not promise."""
    return Counter(
        (each.kind, each.topic, each.partition) for each in steps if each.kind not in _MARKS
    )
