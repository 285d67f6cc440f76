"""The checkpoints that lie in a store, and the hint that names the newest one.

They spare new readers the old commits, and nothing depends on them: what is lost, damaged or of
another log is passed over with a warning, and costs time.
"""

import contextlib
import errno
import json
import logging
from hashlib import blake2b

from segmentlog.bucket.checkpoints import decode_checkpoint, encode_checkpoint, is_sealed
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.marker import NEWEST_LAYOUT, Marker
from segmentlog.bucket.objects import MOST_WHOLE_BYTES, Objects
from segmentlog.errors import CorruptCheckpointError, StorageError
from segmentlog.store.paths import BucketLocation

logger = logging.getLogger(__name__)

HINT = "segmentlog/newest.json"
CHECKPOINTS = "segmentlog/checkpoints/"

#: Commits between two checkpoints at the least: a new reader reads half as many, some at once.
_EVERY = 32

#: Rows of a state that one commit more may cost: the larger it is, the rarer are checkpoints.
_ROWS_OF_COMMIT = 256

#: Checkpoints that stay, the newest ones, and that are tried if there is no hint.
N_KEPT_CHECKPOINTS = 3


def checkpoint_key(number: int) -> str:
    """Key of the checkpoint after a commit."""
    return f"{CHECKPOINTS}{number:020d}.arrow"


def checkpoint_number(key: str) -> int | None:
    """The number of the checkpoint that a key is of, or None if it is of something else."""
    name = key.removeprefix(CHECKPOINTS).partition(".")[0]
    return int(name) if name.isdecimal() and checkpoint_key(int(name)) == key else None


def interval(state: LogState) -> int:
    """Commits between two checkpoints of such a state: a power of two, as all writers have it."""
    n_rows = sum(log.n_extents for log in state.logs.values()) + len(state.ended)
    return 1 << (max(n_rows // _ROWS_OF_COMMIT, _EVERY).bit_length() - 1)


class CheckpointObjects:
    """The checkpoints of one log.

    `location`: for errors.
    """

    def __init__(self, objects: Objects, location: BucketLocation) -> None:
        self._objects, self._location = objects, location

    def get(self, key: str) -> bytes | None:
        """An object; a hint or a checkpoint counts as missing if it is too large."""
        try:
            return self._objects.get(key)
        except StorageError as error:
            if not key.startswith((HINT, CHECKPOINTS)) or error.errno != errno.EFBIG:
                raise
            logger.warning("%s; all commits are read instead", error)
            return None

    def newest(self, marker: Marker) -> LogState | None:
        """The state of the newest checkpoint that proves itself, or None: there was no hint."""
        if marker.layout < NEWEST_LAYOUT:
            return None  # its checkpoints have no seal
        found = (checkpoint_number(each.key) for each in self._objects.list(CHECKPOINTS))
        numbers = sorted(each for each in found if each is not None)[-N_KEPT_CHECKPOINTS:]
        for number in reversed(numbers):
            key = checkpoint_key(number)
            with contextlib.suppress(CorruptCheckpointError):
                data = self.get(key)
                state = decode_checkpoint(data, key) if data and is_sealed(data) else None
                if state and (state.number, state.log_id) == (number, marker.log_id):
                    return state
        return None

    def hinted_key(self) -> str:
        """Key of the checkpoint that the hint names, or an empty text."""
        number = self.hinted_number(self.get(HINT))
        return checkpoint_key(number) if number else ""

    def hinted_number(self, hint: bytes | None) -> int:
        """The number of the checkpoint that a hint names; 0 if it names none."""
        return self._hinted(hint)[0] if hint is not None else 0

    def _hinted(self, hint: bytes) -> tuple[int, str]:
        """Number and digest of the checkpoint that the hint names; 0 if it names none."""
        try:
            found = json.loads(hint)
            number, digest = found["checkpoint"], found["digest"]
            if type(number) is not int or not 0 < number < 10**20:
                raise ValueError(f"number {str(number)[:80]!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("%s/%s is no hint, and is passed over: %r", self._location, HINT, error)
            return 0, ""
        return number, digest

    def hinted(
        self, hint: bytes | None, marker: Marker, data: bytes | None = None
    ) -> LogState | None:
        """The state of the checkpoint that the hint names, or None; `data`: its bytes."""
        number, digest = self._hinted(hint) if hint is not None else (0, "")
        if not number:
            return None
        try:
            data = self._objects.get(checkpoint_key(number)) if data is None else data
            if data is not None:
                path = f"{self._location}/{checkpoint_key(number)}"
                # Arrow has no checksums: it would return other numbers, or end the process.
                state = decode_checkpoint(data, path) if _digest(data) == digest else None
                is_of_log = state is not None and (
                    state.log_id == (marker.log_id or state.log_id) or number < marker.since
                )
                if state is not None and state.number == number and is_of_log:
                    return state
                reason = "is not what was written" if is_of_log else "is of another log"
                raise CorruptCheckpointError(path, 1, reason, "")
        except (CorruptCheckpointError, StorageError) as error:
            if isinstance(error, StorageError) and error.errno != errno.EFBIG:
                raise
            logger.warning("%s; all commits are read instead", error)
        return None

    def write(self, state: LogState, number: int) -> None:
        """Write a checkpoint and the hint, if they are due after commit `number`.

        A failure costs later readers time, nothing else.
        """
        if number % _EVERY or state.number != number or number % interval(state):
            return  # another thread has gone on, or the next one is far
        try:
            data = encode_checkpoint(state)
            if len(data) > MOST_WHOLE_BYTES:
                reason = (
                    f"it would have {len(data)} bytes, and readers take at the most "
                    f"{MOST_WHOLE_BYTES}; new processes read all commits since the last one: "
                    "segmentlog compact joins small extents"
                )
                raise ValueError(reason)
            self._objects.put(checkpoint_key(number), [data])
            hint = {"checkpoint": number, "digest": _digest(data), "log": state.log_id}
            self._objects.put(HINT, [json.dumps(hint).encode()])
        except Exception as error:  # noqa: BLE001 - the commit is done: a failure would be repeated
            logger.warning("%s: no checkpoint was written: %s", self._location, error)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
