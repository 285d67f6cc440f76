"""Commits that the writers have noted, and a check of a read against them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from soaking.plan import PARTITIONS, SPARK, WRITER, Soak, records_of, topic_of

__all__ = ["History", "Tail"]

State = dict[bytes, bytes]


class Tail:
    """The events of a ledger that were not read yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def events(self) -> Iterator[dict[str, Any]]:
        """New events, from whole lines only."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        for line in data.splitlines():
            yield json.loads(line)


class History:
    """The commits of both writers.

    Parameters
    ----------
    run : the soak.
    ledger : its path.

    Attributes
    ----------
    committed, begun : numbers of the last commits that have ended, and that have begun, by writer.
    sequences : how many records each partition has, once all that has begun is committed.
    n_records : in the commits that have begun, by topic.
    """

    def __init__(self, run: Soak, ledger: Path) -> None:
        self._run, self._tail = run, Tail(ledger)
        self.committed = {WRITER: -1, SPARK: -1}
        self.begun = {WRITER: -1, SPARK: -1}
        self.sequences: dict[tuple[int, str], dict[int, int]] = {
            (slot, topic): dict.fromkeys(range(n), 0)
            for slot in self.committed
            for topic, n in PARTITIONS.items()
        }
        self.n_records: Counter[str] = Counter()
        self._states: dict[int, State] = {WRITER: {}, SPARK: {}}
        self._at = {WRITER: -1, SPARK: -1}
        self._changes: dict[tuple[int, int], dict[bytes, bytes | None]] = {}

    def update(self) -> dict[int, int]:
        """Read the new notes; return the last ended commit of each writer."""
        for event in self._tail.events():
            if event["what"] == "begin" and event["number"] > self.begun[event["slot"]]:
                self._begin(event["slot"], event["number"])
            elif event["what"] == "committed":
                self.committed[event["slot"]] = event["number"]
        return dict(self.committed)

    def _begin(self, slot: int, number: int) -> None:
        assert number == self.begun[slot] + 1
        self.begun[slot] = number
        counts = self.sequences[slot, topic_of(slot, number)]
        topic, records = records_of(self._run, slot, number, counts)
        for each in records:
            counts[each.partition] += 1
        self.n_records[topic] += len(records)
        if topic == "latest":
            self._changes[slot, number] = {each.key or b"": each.value for each in records}

    def misfit(
        self, found: Mapping[bytes, bytes | None], since: Mapping[int, int], may_keep: bool = False
    ) -> str:
        """Why the last values are those of no moment of the read; empty if they are of one.

        Parameters
        ----------
        found : the last value of each key, None or nothing for a deleted key.
        since : the last commits before the read began; the history was updated after its end.
        may_keep : whether deleted keys may have values, because their tombstones are gone.
        """
        for slot in (WRITER, SPARK):
            self._advance(slot, since[slot])
            own = {key: value for key, value in found.items() if key.startswith(b"%d-" % slot)}
            why = self._misfit(slot, {k: v for k, v in own.items() if v is not None}, may_keep)
            if why:
                return why
        return ""

    def _advance(self, slot: int, number: int) -> None:
        state = self._states[slot]
        while self._at[slot] < number:
            self._at[slot] += 1
            _apply(state, self._changes.pop((slot, self._at[slot]), {}))

    def _misfit(self, slot: int, found: State, may_keep: bool) -> str:
        state = dict(self._states[slot])
        why = ""
        for number in range(self._at[slot], self.begun[slot] + 1):
            if number > self._at[slot]:
                _apply(state, self._changes.get((slot, number), {}))
            seen = {k: v for k, v in found.items() if k in state} if may_keep else found
            if seen == state:
                return ""
            why = why or _difference(seen, state)
        return f"writer {slot}, after commits {self._at[slot]} to {self.begun[slot]}: {why}"


def _apply(state: State, changes: Mapping[bytes, bytes | None]) -> None:
    for key, value in changes.items():
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value


def _difference(found: State, expected: State) -> str:
    lost = sorted(expected.keys() - found.keys())
    back = sorted(found.keys() - expected.keys())
    other = sorted(key for key in found.keys() & expected if found[key] != expected[key])
    shown = [(key, found[key][:20], expected[key][:20]) for key in other[:3]]
    return f"{len(lost)} lost {lost[:3]}, {len(back)} came back {back[:3]}, other values {shown}"
