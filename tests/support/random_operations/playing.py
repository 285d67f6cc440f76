"""Play a sequence of operations on a new directory, and shorten a sequence that fails."""

import contextlib
import itertools
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_disk.image import write_tree
from crash_disk.recorder import Recorder
from crash_disk.runs import same_names_again
from crash_disk.states import CrashDisk
from crashing import Crash, refuse_copies

from random_operations.faults import KINDS, POWER, Calls, Fault, met
from random_operations.looking import (
    Held,
    Seen,
    assert_equal,
    assert_found_by_time,
    assert_identified,
    assert_sound,
    assert_trusted,
    look,
)
from random_operations.model import Model
from random_operations.operations import (
    ALL_TOPICS,
    CUT,
    DONE,
    OPERATIONS,
    REFUSED,
    Mirrored,
    Plan,
    RenamedTopic,
    Scene,
)
from segmentlog.errors import CommitInDoubtError, SegmentLogError


class Step(NamedTuple):
    """An operation, the seed of its details, and the fault that it meets."""

    name: str
    seed: int
    fault: Fault | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.seed}" + (f"!{self.fault}" if self.fault else "")


def parse(text: str) -> list[Step]:
    """The steps in a line that a failure has printed."""
    steps = []
    for word in text.split():
        call, _, fault = word.partition("!")
        name, _, seed = call.partition(":")
        steps.append(Step(name, int(seed), Fault.parse(fault) if fault else None))
    return steps


#: A first step with this name says that the power may be cut later: each change of the disk is
#: recorded from then on, and writers sync.
POWERED = "powered"


class BrokenSequenceError(AssertionError):
    """A sequence after which a directory differs from its model."""

    def __init__(self, steps: Sequence[Step], what: str) -> None:
        super().__init__(steps, what)
        self.steps, self.what = [*steps], what

    def __str__(self) -> str:
        line = " ".join(map(str, self.steps))
        return f"{self.what}\nafter {len(self.steps)} operations; to repeat it:\nSEQUENCE='{line}'"


class _Disk:
    """What a power cut may leave of everything below a directory."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._recorder = Recorder(root, patch, compares=False)
        self._disk = CrashDisk(self._recorder.image)

    def take(self) -> None:
        """Take the steps since the last time."""
        for each in self._recorder.steps:
            self._disk.take(each)
        self._recorder.steps.clear()
        self._recorder.calls.clear()

    def begin(self) -> None:
        """Take everything that is there for durable."""
        self._recorder.begin()
        self._disk = CrashDisk(self._recorder.image)

    def cut(self, rng: random.Random) -> None:
        """Leave what may be left after a power cut."""
        self.take()
        tree = self._disk.drawn(rng)
        self._recorder.is_paused = True
        shutil.rmtree(self._root)
        write_tree(tree, self._root)
        self.begin()


class _Play:
    """A directory, its model, and a clock that operations move.

    A fault, or a directory without the mark of a clean stop, leaves work to a recovery; from
    then on `verify` finds nothing.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = root / "logs"
        self.model = Model()
        self._root, self._patch = root, patch
        self._mirrored = Mirrored(root / "mirrored", [])
        self._renamed: list[RenamedTopic] = []
        self._is_disturbed = False
        self._lacks_indexes = False
        self._now_ns, self._waited_ms = time.time_ns(), 0
        self._disk: _Disk | None = None
        #: Operations that were cut off, and how many of their parts were done: what they did may
        #: be lost, although readers have seen it.
        self._unsettled: list[tuple[Plan, int]] = []
        self._boots = map(str, itertools.count())
        self._boot = next(self._boots)
        same_names_again(patch)
        patch.setattr(time, "time_ns", lambda: self._now_ns)
        patch.setattr(time, "time", lambda: self._now_ns / 1e9)

    def wait(self, n_ms: int) -> None:
        """Move the clock."""
        self._now_ns += n_ms * 10**6
        self._waited_ms += n_ms

    def begin_to_record(self) -> None:
        """Record each change, so that the power may be cut."""
        self._patch.setattr("segmentlog.txn.change.boot_id", lambda: self._boot)
        refuse_copies(self._patch)
        self._disk = _Disk(self._root, self._patch)

    def step(self, step: Step) -> Calls:
        """Play one step and look at the result; return the calls that it made."""
        rng = random.Random(f"{step.name}:{step.seed}")
        self.wait(rng.randint(1, 20))
        scene = Scene(
            self.directory,
            self.model,
            rng,
            self._now_ns // 10**6,
            self.wait,
            self._mirrored,
            self._disk is not None,
            self._renamed,
            is_unsettled=bool(self._unsettled),
        )
        plan = OPERATIONS[step.name].plan(scene)
        held = Held(self.directory, self.model, rng)
        n_done = 0

        def done() -> None:
            nonlocal n_done
            n_done += 1

        with met(step.fault) as calls:
            ending = _ending(plan, step.fault, done)
        is_cut = self._disk is not None and step.fault is not None and step.fault.kind == POWER
        if is_cut:
            self._cut_power(rng)
        moved = plan.follow(ending) if plan.follow is not None else None
        seen = look(self.directory, (None, *ALL_TOPICS), twice=rng.random() < 0.3)
        plans = [(plan, n_done)]
        if is_cut and moved is None:
            plans += self._unsettled
        after = _first_equal(plans, seen, ending, moved)
        if not is_cut and moved is None and step.name != "fail_over":
            # The clock that operations move is ahead of the times that the system gives to files.
            # On a full disk, a change that is decided removes files without the delay.
            is_full = step.fault is not None and step.fault.kind == "full"
            are_kept = plan.delay_ms > self._waited_ms and not is_full
            held.check(after, are_files_kept=are_kept)
        if rng.random() < 0.4:
            assert_found_by_time(self.directory, after, rng)
        assert_identified(self.directory, after, ALL_TOPICS)
        self._note(step, calls, is_taken_over=moved is not None)
        if not self._is_disturbed:
            assert_sound(self.directory)
        elif rng.random() < 0.3:
            assert_trusted(self.directory)
        self.model = after
        if is_cut or moved is not None or not OPERATIONS[step.name].may_fail:
            self._unsettled.clear()
            if self._disk is not None:
                self._disk.begin()  # an administrator syncs
        elif ending == CUT:
            self._unsettled.append((plan, n_done))
        elif ending == DONE and plan.is_settled:
            self._unsettled.clear()
        if self._disk is not None:
            self._disk.take()
        return calls

    def _cut_power(self, rng: random.Random) -> None:
        assert self._disk is not None
        self._disk.cut(rng)
        self._boot = next(self._boots)
        if self._mirrored.models and not self._mirrored.directory.exists():
            assert Model() in self._mirrored.models, "the mirror is gone"
            self._mirrored.models = []

    def _note(self, step: Step, calls: Calls, *, is_taken_over: bool) -> None:
        """Note what is left to a recovery."""
        # A mirror lacks the indexes of active segments.
        is_moved = step.name == "fail_over" or is_taken_over
        if calls.is_met or step.name == "unmark" or is_moved:
            self._is_disturbed = True
            self._lacks_indexes |= is_moved
            # On a full disk, upkeep gives up indexes of segments that are about to go.  They stay
            # without indexes if there is no room even then, until `reindex` builds them again.
            self._lacks_indexes |= step.fault is not None and step.fault.kind == "full"
        elif step.name == "reindex" or (step.name == "recover" and not self._lacks_indexes):
            self._is_disturbed = self._lacks_indexes = False


def _ending(plan: Plan, fault: Fault | None, done: object) -> str:
    """Carry out a plan, and return how it ended."""
    try:
        plan.act(done)  # type: ignore[arg-type]
    except (Crash, KeyboardInterrupt):
        return CUT
    except CommitInDoubtError:
        assert fault is not None, "a commit is in doubt without a fault"
        return CUT
    except (SegmentLogError, OSError) as error:
        if plan.refusal is not None and isinstance(error, plan.refusal):
            return REFUSED
        if fault is None:
            message = f"{type(error).__name__}: {error}"
            raise AssertionError(message) from error
        return REFUSED
    assert plan.refusal is None, f"{plan.refusal} was not raised"
    return DONE


def _first_equal(
    plans: Sequence[tuple[Plan, int]], seen: Seen, ending: str, moved: Sequence[Model] | None
) -> Model:
    """The first of the allowed models that equals the directory.

    The first plan is that of the operation; the others were cut off before.
    """
    errors = []
    for number, (plan, n_done) in enumerate(plans):
        try:
            models = (
                moved
                if moved is not None
                else plan.allowed(seen, CUT if number else ending, n_done)
            )
            for model in models:
                try:
                    assert_equal(seen, model)
                except AssertionError as error:
                    errors.append(str(error))
                else:
                    return model
        except AssertionError as error:  # no judge allows it
            errors.append(str(error))
    message = f"{ending}, and " + "; nor: ".join(errors)
    raise AssertionError(message)


@contextlib.contextmanager
def _new_play() -> Iterator[_Play]:
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _: None)  # only needed for a power cut
        yield _Play(root, patch)
    shutil.rmtree(root)


def _played(player: _Play, done: Sequence[Step], step: Step) -> Calls:
    try:
        if step.name == POWERED:
            player.begin_to_record()
            return Calls()
        return player.step(step)
    except Exception as error:
        name = "" if type(error) is AssertionError else f"{type(error).__name__}: "
        raise BrokenSequenceError(done, f"{name}{error}".split("\nassert")[0]) from error


def play(steps: Sequence[Step]) -> None:
    """Play these steps.

    Raises `BrokenSequenceError`, with the steps up to the first one that has broken something.
    """
    with _new_play() as player:
        for number, step in enumerate(steps):
            _played(player, steps[: number + 1], step)


def draw(rng: random.Random, n_steps: int, counts: Counter[str]) -> None:
    """Draw steps one after the other, and play each; every third one meets a fault.

    In half of the sequences the power may be cut.  The last step is a recovery.

    `counts`: takes how often each operation was done, and how often each fault was met. Raises
    `BrokenSequenceError`, with the steps so far.
    """
    names, weights = [*OPERATIONS], [each.weight for each in OPERATIONS.values()]
    known = dict[str, Calls]()
    done: list[Step] = []
    with _new_play() as player:
        kinds: tuple[str, ...] = KINDS
        if rng.random() < 0.5:
            done.append(Step(POWERED, 0))
            _played(player, done, done[-1])
            kinds = (*KINDS, *(POWER,) * len(KINDS))
        for left in reversed(range(n_steps)):
            (name,) = rng.choices(names, weights) if left else ("recover",)
            fault = None
            if left and OPERATIONS[name].may_fail and rng.random() < 0.35:
                kind = rng.choice(kinds)
                most = known[name].of(kind) if name in known else 60
                fault = Fault(kind, rng.randrange(most + 2), rng.random() < 0.3)
            done.append(Step(name, rng.randrange(10**6), fault))
            calls = _played(player, done, done[-1])
            counts[name] += 1
            if fault is None:
                known[name] = calls
            elif calls.is_met:
                counts[fault.kind] += 1


def shortened(error: BrokenSequenceError) -> BrokenSequenceError:
    """A failure of the same kind after fewer steps, none of which can be left out."""
    kind = _kind(error)
    n_steps = len(error.steps)
    size = max(n_steps // 2, 1)
    while size:
        begin = 0
        while begin < len(error.steps):
            fewer = [*error.steps[:begin], *error.steps[begin + size :]]
            found = _failure(fewer)
            if found is not None and _kind(found) == kind:
                error = found
            else:
                begin += size
        size //= 2
    for number, step in enumerate(error.steps):
        calmer = [*error.steps]
        calmer[number] = step._replace(fault=None)
        found = _failure(calmer)
        if found is not None and _kind(found) == kind and len(found.steps) == len(calmer):
            error = found
    return error


def _failure(steps: Sequence[Step]) -> BrokenSequenceError | None:
    try:
        play(steps)
    except BrokenSequenceError as error:
        return error
    return None


def _kind(error: BrokenSequenceError) -> str:
    """The first words of a failure, without numbers and paths: equal for failures of one cause."""
    words = [each for each in error.what.split() if "/" not in each]
    return "".join(each for each in " ".join(words[:4]) if not each.isdigit())
