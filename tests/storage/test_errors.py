"""Errors cross process borders whole, and say what, where and what to do."""

import pickle

import pytest

from segmentlog import errors

EXAMPLES = [
    errors.ChecksumMismatchError("/d/t-0/0.log", 61, 7, 1, 2),
    errors.MalformedBatchError("/d/t-0/0.log", 61, 7, "its length is odd"),
    errors.TruncatedBatchError("/d/t-0/0.log", 61, 7, 100, 9),
    errors.CorruptIndexError("/d/t-0/0.index", "does not fit"),
    errors.CorruptCheckpointError("/d/c", 3, "expected a number", "remove it"),
    errors.UnsupportedFormatError("/d/t-0/0.log", 61, "magic", 1),
    errors.LogDirectoryError("/d", "is no directory"),
    errors.UnknownTopicOrPartitionError("t", 3, "/d", "it has partitions 0"),
    errors.OffsetOutOfRangeError("t-0", 9, 0, 5),
    errors.LogChangedError("/d/t-0", 3, 9, "ended early"),
    errors.TimestampOverflowError("t", 0, 9, 2**62),
    errors.OptionError("readUpTo", "x", "give logEnd"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: errors.SegmentLogError) -> None:
    """Class, message and every attribute, as between a Spark worker and its driver."""
    copy = pickle.loads(pickle.dumps(error))

    assert type(error) is type(copy)
    assert str(error) == str(copy)
    assert vars(error) == vars(copy)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_message_names_everything_it_was_given(error: errors.SegmentLogError) -> None:
    """No coordinate is kept back; checksums are shown as they are stored."""
    hexadecimal = isinstance(error, errors.ChecksumMismatchError)
    shown = [f"{a:#010x}" if hexadecimal and i > 2 else str(a) for i, a in enumerate(error.args)]

    assert [] == [text for text in shown if text not in str(error)]


def test_every_error_is_listed_and_drawn() -> None:
    """The tree at the top of the module names each class, and so do these examples."""
    named = {name for name in errors.__all__ if name != "SegmentLogError"}

    assert {name for name in named if name not in (errors.__doc__ or "")} == set()
    assert named - {"CorruptLogError"} == {type(error).__name__ for error in EXAMPLES}


def test_builtin_parents_are_what_callers_expect() -> None:
    """`except LookupError` and `except ValueError` catch what they would elsewhere."""
    assert issubclass(errors.OffsetOutOfRangeError, LookupError)
    assert issubclass(errors.UnknownTopicOrPartitionError, LookupError)
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.CorruptLogError, ValueError)
    assert issubclass(errors.TimestampOverflowError, OverflowError)
