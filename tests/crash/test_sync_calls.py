"""Every sync and every rename of a write is there for a reason: without it, something breaks."""

from collections.abc import Callable, Iterator, Mapping

import pytest
from crash_disk.check import BrokenPromiseError
from crash_disk.explore import Explorer
from crash_disk.scenarios import SINGLES, Scenario
from crash_disk.sites import Site, sites_met, without

#: Calls that no power cut misses, and why they are made all the same.
REASONS: Mapping[str, str] = {
    call: reason
    for reason, calls in {
        "the task whose disk fails learns it here; its pages may be another machine's": [
            "disk.sync_together > sync_file: fsync *.stage",
        ],
        "a reader who looked before the guard stood would take the log end": [
            (
                "append.prepare.visible_ends > write_offsets > write > replace_file: "
                "replace replication-offset-checkpoint"
            ),
            (
                "append.prepare.visible_ends > write_offsets > write > replace_file > "
                "sync_directory > sync_file: fsync log directory"
            ),
        ],
        "a recovery point that lags has the next recovery read what this one has read": [
            (
                "append.prepare.ready_to_append > put > write > write_offsets > write > "
                "replace_file: replace recovery-point-offset-checkpoint"
            ),
            (
                "append.prepare.ready_to_append > put > write > write_offsets > write > "
                "replace_file > sync_directory > sync_file: fsync log directory"
            ),
        ],
        "a compaction whose offset lags has the next one clean again what is clean": [
            (
                "compaction.job.reached > put > write > write_offsets > write > "
                "replace_file: replace cleaner-offset-checkpoint"
            ),
            (
                "compaction.job.reached > put > write > write_offsets > write > "
                "replace_file > sync_directory > sync_file: fsync log directory"
            ),
        ],
        "high watermarks tell of missing partitions; no record comes before the next sync": [
            "commit.topics.create_partitions > sync_directory > sync_file: fsync log directory",
        ],
        "a sync of the same directory comes behind it": [
            "commit.topics.create > replace_file > sync_directory > sync_file: fsync partition",
            "commit.deleted.take_out > sync_directory > sync_file: fsync log directory",
            "recovery.broken.keep_tail > sync_directory > sync_file: fsync partition",
            "recovery.recover_log.cut > sync_directory > sync_file: fsync partition",
            "recovery.reindex.put > replace_file > sync_directory > sync_file: fsync partition",
            (
                "recovery.recover_directory.close > write_offsets > write > replace_file > "
                "sync_directory "
                "> sync_file: fsync log directory"
            ),
        ],
        "a broker that starts, or the next deletion, removes what is left of a deleted topic": [
            "commit.deleted.remove_taken_out > sync_directory > sync_file: fsync log directory",
        ],
    }.items()
    for call in calls
}

Sites = dict[Site, list[Scenario]]


@pytest.fixture(scope="module")
def sites(explorer: Explorer) -> Sites:
    """All calls that the scenarios come by, with the scenarios."""
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
    say(f"\n{'without':110} {'breaks':25} as is noticed by")
    for site, scenario, who in rows:
        say(f"{site!s:110} {scenario:25} {who}")


def noticed(explorer: Explorer, site: Site, scenarios: list[Scenario]) -> tuple[str, str] | None:
    """The scenario that breaks without a call, and who notices."""
    for scenario in scenarios:
        try:
            run = scenario.record(explorer, without(site))
        except Exception as error:  # noqa: BLE001 - whatever comes of it
            return scenario.name, f"itself: {type(error).__name__}"
        try:
            explorer.explore(run)
        except BrokenPromiseError as error:
            return scenario.name, error.who
    return None


@pytest.mark.parametrize(
    "stride",
    [
        64,
        pytest.param(16, marks=pytest.mark.thorough),
        pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_each_call_that_does_nothing_is_noticed(
    explorer: Explorer, sites: Sites, table: list[tuple[Site, str, str]], stride: int
) -> None:
    """One at a time; those with a reason of another kind are listed, and they alone."""
    tried = [site for site in sites if stride == 1 or str(site) not in REASONS][::stride]
    unnoticed = []
    for site in tried:
        found = noticed(explorer, site, sites[site])
        table.append((site, *(found or ("nothing", REASONS.get(str(site), "nobody")))))
        if found is None:
            unnoticed.append(str(site))

    assert set(unnoticed) == (set(REASONS) if stride == 1 else set())


def test_reasons_are_given_for_calls_that_there_are(sites: Sites) -> None:
    """A reason goes when its call goes."""
    assert REASONS.keys() <= {str(site) for site in sites}
