"""The table of faults: `recovery.md` prints it, and each of its rows is found by a rule."""

import re
from collections.abc import Iterator
from pathlib import Path

import segmentlog
from segmentlog import StartAction
from segmentlog.maintain.health.kinds import FaultKind
from segmentlog.maintain.verification.findings import OF_START

ENGINE = Path(segmentlog.__file__).parent
PAGE = Path(__file__).parents[4] / "storage" / "docs" / "recovery.md"

_HEAD = (
    "| fault | a starting broker (`preflight`) | a finding of `verify` | `segmentlog recover` |"
)


def printed() -> Iterator[str]:
    """The lines of the table."""
    yield _HEAD
    yield "|---|---|---|---|"
    for each in FaultKind:
        fault, action, mend, after = each.value
        mends = "; ".join(filter(None, (mend, after))) or "—"
        yield f"| {fault} | `{action}` | `{OF_START[action]}` | {mends} |"


def test_the_page_prints_the_table_of_faults() -> None:
    """Each fault, what a broker does, and what is mended, word for word."""
    text = PAGE.read_text()
    found = text[text.index(_HEAD) :].partition("\n\n")[0]
    assert "\n".join(printed()) == found


def test_each_row_is_found_by_a_rule() -> None:
    """A row that no code names would promise what nobody looks for."""
    sources = [each.read_text() for each in (ENGINE / "maintain").rglob("*.py")]
    named = set(re.findall(r"\bFaultKind\.([A-Z_]+)\b", "\n".join(sources)))
    assert {each.name for each in FaultKind} == named


def test_each_action_of_a_broker_is_a_finding() -> None:
    """Otherwise `verify` would fail where `preflight` has a step."""
    assert {*StartAction} == {*OF_START}
