"""Scalars that are made from memory equal those that Arrow makes."""

import pyarrow as pa
import pytest

from segmentlog.format.records.columns import scalar


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("orders", pa.string()),
        ("", pa.string()),
        ("größer", pa.string()),
        (7, pa.int32()),
        (-(2**31), pa.int32()),
        (2**63 - 1, pa.int64()),
        (-(2**63), pa.timestamp("us", "UTC")),
        (1_700_000_000_000_000, pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_a_scalar_is_arrows(value: int | str, kind: pa.DataType) -> None:
    """The scalar has Arrow's type and value; repeated, it fills a column."""
    expected, found = pa.scalar(value, kind), scalar(value, kind)

    assert (kind, expected) == (found.type, found)
    assert pa.repeat(expected, 3) == pa.repeat(found, 3)


def test_a_number_that_the_type_cannot_hold_is_refused() -> None:
    """A number that does not fit is not changed into another number."""
    with pytest.raises(OverflowError):
        scalar(2**31, pa.int32())
