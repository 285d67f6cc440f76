"""Offsets in bitmaps are those of a counter, whatever memory there is."""

import random
from collections import Counter

import numpy as np
import pytest

from segmentlog.audits import bitmaps, table_offsets
from segmentlog.audits.spill import SpillFile
from segmentlog.audits.table_offsets import TableOffsets
from segmentlog.format.kernels.offset_bitmaps import WINDOW_OFFSETS


@pytest.mark.parametrize("n_windows", [1, 3, 512])
@pytest.mark.parametrize("seed", range(4))
def test_offsets_are_those_of_a_counter(
    monkeypatch: pytest.MonkeyPatch, seed: int, n_windows: int
) -> None:
    """Windows that are full, that leave for the file and come again; duplicates; hostile rows."""
    monkeypatch.setattr(bitmaps, "_MOST_WINDOWS", n_windows)
    monkeypatch.setattr(bitmaps, "_LEAST_ROWS", 40)
    monkeypatch.setattr(bitmaps, "_MANY_ROWS", 60)
    monkeypatch.setattr(table_offsets, "_MOST_COLLECTED", 400)
    draw = random.Random(seed)
    offsets = TableOffsets(SpillFile())
    given = [Counter[int]() for _ in range(3)]
    edges = [0, WINDOW_OFFSETS - 100, 5 * WINDOW_OFFSETS, 2**40, 2**62]
    for _ in range(12):
        rows = [(draw.randrange(3), draw.choice(edges) + draw.randrange(200)) for _ in range(200)]
        rows += [(1, draw.choice([-5, 2**63 - 2, draw.randrange(2**63)])) for _ in range(9)]
        draw.shuffle(rows)
        for code, offset in rows:
            given[code][offset] += 1
        codes, numbers = np.array(rows, np.int64).T.copy()
        offsets.add(codes, numbers)
    offsets.finish()

    for code, expected in enumerate(given):
        cursor, found = offsets.cursor(code), Counter[int]()
        assert cursor.end == max(expected) + 1
        for again in range(2):
            cursor = cursor.again()
            found.clear()
            reached, bounds = -(2**63), sorted(draw.choices([*expected], k=5))
            for bound in [*bounds, 2**63 - 1]:
                while reached < bound:
                    end = cursor.reach(bound)
                    for first, until, times in zip(*cursor.take(reached, end), strict=True):
                        for offset in range(first, until):
                            found[offset] += int(times)
                    reached = end
            assert expected == found, again
    assert offsets.n_rows == {code: each.total() for code, each in enumerate(given)}


def test_windows_that_are_full_give_their_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three windows, each in no order and twice, in the memory of one."""
    monkeypatch.setattr(bitmaps, "_MOST_WINDOWS", 1)
    spill = SpillFile()
    offsets = TableOffsets(spill)
    draw = np.random.default_rng(1)
    for number in (0, 1, 1, 2):
        rows = draw.permutation(WINDOW_OFFSETS) + number * WINDOW_OFFSETS
        offsets.add(np.zeros(len(rows), np.int64), rows)
        offsets._collector._sort()
        offsets.add(np.zeros(len(rows), np.int64), rows[:5])
    offsets.finish()

    cursor, found = offsets.cursor(0), []
    for number in range(3):
        end = cursor.reach((number + 1) * WINDOW_OFFSETS)
        found.append(int((np.subtract(*cursor.take(number * WINDOW_OFFSETS, end)[1::-1])).sum()))
    assert [WINDOW_OFFSETS] * 3 == found
    assert spill._end == 0
