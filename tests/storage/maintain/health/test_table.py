"""The table of faults: each of its rows is found by a rule."""

import re
from pathlib import Path

import segmentlog
from segmentlog import StartAction
from segmentlog.maintain.health.kinds import FaultKind
from segmentlog.maintain.verification.findings import OF_START

ENGINE = Path(segmentlog.__file__).parent


def test_each_row_is_found_by_a_rule() -> None:
    """A row that no code names would promise what nobody looks for."""
    sources = [each.read_text() for each in (ENGINE / "maintain").rglob("*.py")]
    named = set(re.findall(r"\bFaultKind\.([A-Z_]+)\b", "\n".join(sources)))
    assert {each.name for each in FaultKind} == named


def test_each_action_of_a_broker_is_a_finding() -> None:
    """Otherwise `verify` would fail where `preflight` has a step."""
    assert {*StartAction} == {*OF_START}
