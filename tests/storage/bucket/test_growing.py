"""What a state of a log remembers of earlier commits, and what the next state costs."""

import random

from segmentlog.bucket.commits import Commit
from segmentlog.bucket.growing import Growing
from segmentlog.bucket.log_state import LogState
from segmentlog.txn.state import FORGOTTEN_AFTER_MS

_DAY_MS = 24 * 3600 * 1000


def test_it_has_what_a_dict_has() -> None:
    chosen = random.Random(57)
    table, model = Growing[int, int](), dict[int, int]()
    for number in range(3000):
        before, copy = table, dict(model) if number % 500 == 0 else None
        rows = {chosen.randrange(2000): number for _ in range(chosen.randrange(4))}
        table = table.grown(rows)
        model |= rows
        if copy is not None:
            assert before == copy
            assert table == model
            assert len(table) == len(model)
            assert [*table.items()] == [*model.items()]
            assert [*table] == [*model]
    assert -1 not in table
    assert table.get(-1) is None


def test_a_commit_costs_the_same_after_many_jobs() -> None:
    """The large table is not copied: states share it."""
    ended = Growing({f"{number:x}": ("", 1000) for number in range(100_000)})
    state = LogState(number=32, time_ms=1000, ended=ended)
    following = state.after(Commit(33, "token", "job", 1001))
    assert following.ended._old is ended._old
    assert "job" in following.ended
    assert "job" not in state.ended


def test_old_jobs_are_forgotten_now_and_then() -> None:
    state = LogState()
    for number in range(1, 100):
        state = state.after(Commit(number, "token", f"job{number}", number * _DAY_MS))
    assert {"job66", "job98", "job99"} <= state.ended.keys()
    assert not {"job1", "job65"} & state.ended.keys()  # more than 30 days before commit 96
    # A clock that jumps moves all times, whatever the number of the commit.
    state = state.after(Commit(100, "token", "", 99 * _DAY_MS + 2 * FORGOTTEN_AFTER_MS))
    state = state.after(Commit(101, "token", "", 99 * _DAY_MS + 2 * FORGOTTEN_AFTER_MS))
    assert state.ended["job99"][1] == 99 * _DAY_MS + 2 * FORGOTTEN_AFTER_MS
