"""Every sync and every rename of a write has a reason: without the call, something breaks."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import pytest
from crash_disk.check import BrokenPromiseError
from crash_disk.explore import Explorer
from crash_disk.scenarios import SINGLES, Scenario
from crashing import Forward, around_calls

CALLS = ("fsync", "rename", "replace", "link")

#: For a call in these modules, the caller shows its purpose.
_HELPERS = ("segmentlog.store.", "segmentlog.log.checkpoint", "segmentlog.log.producer_snapshot")

#: Its function `do_together` makes calls in threads, or in the caller's thread if they are few.
_DURABLE = "segmentlog.store.durable"

_COMPILED = ".nbc"  # the kernels' cache: it is filled where they run for the first time


class Site(NamedTuple):
    """A call in the engine."""

    caller: str  # module and function, and the helpers that they call
    call: str  # of `os`
    target: str  # the kind of file or directory that it changes
    lines: tuple[int, ...]  # of the source, for functions that do the same twice

    def __str__(self) -> str:
        return f"{self.caller}: {self.call} {self.target}"


def _site(call: str, forward: Forward) -> Site:
    """The function that makes the current call."""
    names, lines, module = [], [], _HELPERS[0]
    frame: FrameType | None = sys._getframe()
    while frame is not None and module.startswith(_HELPERS):
        found = str(frame.f_globals["__name__"])
        if found == _DURABLE and frame.f_code.co_name in {"do_together", "<lambda>"}:
            break
        if found.startswith("segmentlog."):
            module = found
            names.append(frame.f_code.co_name.strip("_"))
            lines.append(frame.f_lineno)
        frame = frame.f_back
    if module.startswith(_HELPERS):  # no other function: a thread calls it
        caller = " > ".join([_DURABLE.removeprefix("segmentlog."), *names[::-1]])
    else:
        where = module.removeprefix("segmentlog.")
        caller = " > ".join([f"{where}.{names[-1]}", *names[-2::-1]])
    return Site(caller, call, _target(call, forward), tuple(lines))


def _target(call: str, forward: Forward) -> str:
    """The target of a call, without the parts that differ each time."""
    if call == "fsync":
        path = os.readlink(f"/proc/self/fd/{forward.args[0]}")
    else:
        path = os.fspath(forward.args[1])
    name = os.path.basename(path)
    if re.fullmatch(r"t-\d+", name):
        return "partition"
    if name.startswith("segmentlog.unfinished."):
        return "guard"
    if os.path.isdir(path):
        return "log directory" if name == "logs" else "a directory above"
    name = re.sub(r"\.\d+(?=\.deleted$)", ".*", name.removesuffix(".tmp"))
    return re.sub(r"^(\d{20}|segmentlog\..*(?=\.stage))", "*", name)


@contextmanager
def sites_met(met: list[Site]) -> Iterator[None]:
    """Note the sites that the engine reaches meanwhile, each once."""

    def around(name: str, forward: Forward) -> object:
        site = _site(name, forward)
        if site not in met and not site.target.endswith(_COMPILED):
            met.append(site)
        return forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        yield


@contextmanager
def without(site: Site) -> Iterator[None]:
    """Make one site do nothing meanwhile."""

    def around(name: str, forward: Forward) -> object:
        return None if _site(name, forward) == site else forward()

    with pytest.MonkeyPatch.context() as patch:
        around_calls(patch, CALLS, around)
        yield


#: Calls whose absence no power cut shows, and the reasons to make them.
REASONS: Mapping[str, str] = {
    call: reason
    for reason, calls in {
        "a task notices here that its disk fails; its pages may be on another machine": [
            "store.durable > sync_file: fsync *.stage",
        ],
        "a reader that looked before the guard existed would read up to the log end": [
            (
                "writes.prepare.visible_ends > put > write > write_offsets > write > "
                "replace_file > rename: rename replication-offset-checkpoint"
            ),
            (
                "writes.prepare.visible_ends > put > write > write_offsets > write > "
                "replace_file > sync_directory > sync_file: fsync log directory"
            ),
        ],
        "with a recovery point that lags, the next recovery reads the records again": [
            (
                "writes.prepare.ready_to_append > put > write > write_offsets > write > "
                "replace_file > rename: rename recovery-point-offset-checkpoint"
            ),
            (
                "writes.prepare.ready_to_append > put > write > write_offsets > write > "
                "replace_file > sync_directory > sync_file: fsync log directory"
            ),
        ],
        "with an offset that lags, the next compaction cleans clean segments again": [
            (
                "maintain.compaction.compact.reached > put > write > write_offsets > write > "
                "replace_file > rename: rename cleaner-offset-checkpoint"
            ),
            (
                "maintain.compaction.compact.reached > put > write > write_offsets > write > "
                "replace_file > sync_directory > sync_file: fsync log directory"
            ),
            (
                "txn.effects.apply > write_offsets > write > replace_file > "
                "rename: rename cleaner-offset-checkpoint"
            ),
        ],
        "high watermarks show missing partitions; no record is written before the next sync": [
            "txn.topics.make > sync_directory > sync_file: fsync log directory",
        ],
        "a writer that has died while it made the topic may not have synced it": [
            "txn.topics.create > sync_directory > sync_file: fsync partition",
            "writes.prepare.ready_to_append > sync_directory > sync_file: fsync log directory",
        ],
        "a reader may still need the segment that an earlier compaction has replaced": [
            "log.swaps.swap_in > put_file_aside > rename: rename *.log.*.deleted",
        ],
        "another sync of the directory follows": [
            "txn.topics.take_out > sync_directory > sync_file: fsync log directory",
            "log.swaps.keep_tail > sync_directory > sync_file: fsync partition",
            "txn.recover_log.cut > sync_directory > sync_file: fsync partition",
            ("log.index_builder.rebuild_indexes > sync_directory > sync_file: fsync partition"),
            (
                "maintain.recover_directory.close > put > write > write_offsets > write > "
                "replace_file > sync_directory > sync_file: fsync log directory"
            ),
        ],
        "with an index that lags, look-ups read more of the segment": [
            "cluster.follower.stage_files > rename: rename *.index",
        ],
        "without what it has found equal, the next mirror compares all bytes": [
            f"cluster.follower.write_known > replace_file > {call}"
            for call in (
                "write_new_file > sync_file: fsync segmentlog.mirrored",
                "rename: rename segmentlog.mirrored",
                "sync_directory > sync_file: fsync log directory",
            )
        ],
        "a broker that starts, or the next deletion, removes the rest of a deleted topic": [
            "txn.topics.remove_taken_out > sync_directory > sync_file: fsync log directory",
        ],
    }.items()
    for call in calls
}

Sites = dict[Site, list[Scenario]]


@pytest.fixture(scope="module")
def sites(explorer: Explorer) -> Sites:
    """All calls that the scenarios make, with the scenarios."""
    found: Sites = {}
    for scenario in SINGLES.values():
        met: list[Site] = []
        scenario.record(explorer, sites_met(met))
        for site in met:
            found.setdefault(site, []).append(scenario)
    return found


@pytest.fixture(scope="module")
def table(say: Callable[[str], None]) -> Iterator[list[tuple[Site, str, str]]]:
    """The findings, printed at the end."""
    rows: list[tuple[Site, str, str]] = []
    yield rows
    say(f"\n{'without':110} {'breaks':25} noticed by")
    for site, scenario, who in rows:
        say(f"{site!s:110} {scenario:25} {who}")


def noticed(explorer: Explorer, site: Site, scenarios: list[Scenario]) -> tuple[str, str] | None:
    """The scenario that breaks without a call, and the check that notices."""
    for scenario in scenarios:
        try:
            run = scenario.record(explorer, without(site))
        except Exception as error:  # noqa: BLE001 - any error counts
            return scenario.name, f"itself: {type(error).__name__}"
        try:
            explorer.explore(run)
        except BrokenPromiseError as error:
            return scenario.name, error.who
    return None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.addition("step of a commit")
def test_each_call_that_does_nothing_is_noticed(
    explorer: Explorer, sites: Sites, table: list[tuple[Site, str, str]]
) -> None:
    """One call at a time is left out. Exactly the calls with another reason may go unnoticed."""
    unnoticed = []
    for site in sites:
        found = noticed(explorer, site, sites[site])
        table.append((site, *(found or ("nothing", REASONS.get(str(site), "nobody")))))
        if found is None:
            unnoticed.append(str(site))

    assert set(unnoticed) == set(REASONS)
