"""Errors have useful messages, and reach the driver as they were raised."""

import copy
import inspect
import pickle
import sys
import threading

import pytest

from segmentlog import errors
from segmentlog.errors import SegmentLogError

ERRORS = [
    errors.CorruptLogError("/d/t-0/0.log", 70, 42),
    errors.ChecksumMismatchError("/d/t-0/0.log", 70, 42, 0xDEADBEEF, 0x1),
    errors.MalformedBatchError("/d/t-0/0.log", 70, 42, "its record count is -1"),
    errors.TruncatedBatchError("/d/t-0/0.log", 70, 42, 512, 99),
    errors.TornTransactionError("/d/t-0/0.log", 70, 42, 1000),
    errors.CorruptIndexError("/d/t-0/0.index", "entry 3 is beyond the log"),
    errors.CorruptCheckpointError("/d/replication-offset-checkpoint", 4, "found 'x'", "fix it"),
    errors.UnsupportedFormatError("/d/t-0/0.log", 70, "magic", 1),
    errors.LogDirectoryError("/d", "there is no such file or directory"),
    errors.UnknownTopicOrPartitionError("orders", 7, "/d", "it has partitions 0, 1"),
    errors.UnknownTopicOrPartitionError("orders", -1, "/d"),
    errors.OffsetOutOfRangeError("orders-7", 99, 3, 42),
    errors.LogChangedError("/d/t-0", 10, 42, "0.log is gone"),
    errors.StorageError(28, "No space left on device", "/d/t-0/0.log"),
    errors.TimestampOverflowError("orders", 7, 42, 2**60),
    errors.OptionError("subscribe", "", "name at least one topic"),
    errors.SegmentLogError("anything"),
    errors.InvalidRecordError("orders", 7, 42, "its header has no key"),
    errors.InvalidRecordError("orders", -1, 42, "its header has no key"),
    errors.RecordTooLargeError("orders", 7, 42, 2_000_000, 1_048_588),
    errors.OffsetsOutOfOrderError("orders", 7, 41, 42),
    errors.LogLockedError("/d", 4711, 60.0),
    errors.LogLockedError("/d", 0, 0.5),
    errors.SyncFailedError("/d/orders-7/0.log", "Input/output error"),
    errors.StagedFileError("/d/segmentlog.1.0.2.stage", "/d/segmentlog.1.0.2.stage: short"),
    errors.CommitInDoubtError("/d/segmentlog.unfinished.1", "Input/output error"),
    errors.ColumnError("value", "missing", "the rows have: key"),
    errors.InvalidUtf8Error("orders", 7, 42, "value"),
    errors.OutOfOrderSequenceError("orders", 7, 1000, 3, 42, 40),
    errors.InvalidProducerEpochError("orders", 7, 1000, 3, 42, 4),
    errors.InvalidTxnStateError("orders", 7, 1000, 3, 42, 17),
    errors.LogLockedError("/d", 0, 0.5, is_task=True),
    errors.StreamBatchError("6b1c", 6, 100, 7, 200, "0f2e"),
    errors.SplitKeyError("orders", 1204, ("orders-0 offset 17 and orders-3 offset 5",)),
    errors.StreamOffsetError("orders-7", 42, 40, "and the log ends at 40"),
    errors.RemoteSegmentError("s3://b/t/0.rsm-manifest", "it is not JSON", "restore it"),
    errors.UndecodableValueError("orders", 7, 42, "value", "it names no schema"),
    errors.MalformedRecordError("/d/__consumer_offsets-0/0.log", 42, "it has no key"),
    errors.KernelsError("there are none"),
    errors.ArgumentError("subscribe", "", "read() takes no such argument: give 'topics'"),
]


def test_every_error_class_is_tested_here() -> None:
    """A new error class has to be added here, so that it is pickled, too."""
    classes = {
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, Exception) and each.__name__[0] != "_"
    }

    assert classes == {type(error) for error in ERRORS}
    assert sorted(errors.__all__) == sorted(["ErrorCode", *(each.__name__ for each in classes)])


#: The codes in the order in which they were released.
CODES = [
    "SEGMENT_LOG", "CORRUPT_LOG", "CHECKSUM_MISMATCH", "MALFORMED_BATCH", "TRUNCATED_BATCH",
    "TORN_TRANSACTION", "CORRUPT_INDEX", "CORRUPT_CHECKPOINT", "UNSUPPORTED_FORMAT",
    "LOG_DIRECTORY", "UNKNOWN_TOPIC_OR_PARTITION", "OFFSET_OUT_OF_RANGE", "LOG_CHANGED",
    "TIMESTAMP_OVERFLOW", "OPTION", "LOG_LOCKED", "COMMIT_IN_DOUBT", "INVALID_RECORD",
    "RECORD_TOO_LARGE", "SYNC_FAILED", "OFFSETS_OUT_OF_ORDER", "STAGED_FILE", "COLUMN", "STORAGE",
    "INVALID_UTF8", "OUT_OF_ORDER_SEQUENCE", "INVALID_PRODUCER_EPOCH", "INVALID_TXN_STATE",
    "STREAM_BATCH", "STREAM_OFFSET", "MALFORMED_RECORD",
    "REMOTE_SEGMENT", "KERNELS", "ARGUMENT",
]  # fmt: skip


def test_two_threads_may_make_the_first_error_of_a_class() -> None:
    """Its fields come at the first error; a read from a store asks in several threads."""
    began, told = threading.Barrier(4), list[str]()

    def tell(kind: type[SegmentLogError]) -> None:
        began.wait(60)
        told.extend(str(kind("here")) for _ in range(50))

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):

            class NewError(SegmentLogError):
                _message = "{where}: new"
                where: str

            threads = [threading.Thread(target=tell, args=(NewError,)) for _ in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    finally:
        sys.setswitchinterval(switching)
    assert ["here: new"] * (20 * 4 * 50) == told


def test_codes_only_grow() -> None:
    """An alert on a code works with every later version."""
    assert list(errors.ErrorCode)[: len(CODES)] == CODES


def test_every_class_has_a_code_of_its_own() -> None:
    """Codes and classes correspond one to one."""
    by_class = {type(error): error.code for error in ERRORS}

    assert len(by_class) == len(set(by_class.values())) == len(errors.ErrorCode)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_survives_pickling_with_all_its_fields(error: SegmentLogError) -> None:
    """An error of a Spark worker keeps its class, arguments, fields and message on the driver."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = pickle.loads(pickle.dumps(error, protocol))

        assert type(error) is type(found), protocol
        assert error.args == found.args, protocol
        if isinstance(error, OSError):
            fields = [(each.errno, each.strerror, each.filename) for each in (error, found)]
            assert fields[0] == fields[1] == (28, "No space left on device", "/d/t-0/0.log")
        assert vars(error) == vars(found), protocol
        assert str(error) == str(found), protocol


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_can_be_copied(error: SegmentLogError) -> None:
    """`copy` rebuilds an error from `args`, as pickle does."""
    assert vars(error) == vars(copy.copy(error))


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_every_error_is_one_of_ours(error: SegmentLogError) -> None:
    """`except SegmentLogError` catches all errors."""
    assert isinstance(error, SegmentLogError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.CorruptLogError, ValueError),
        (errors.ChecksumMismatchError, errors.CorruptLogError),
        (errors.MalformedBatchError, errors.CorruptLogError),
        (errors.TruncatedBatchError, errors.CorruptLogError),
        (errors.TornTransactionError, errors.CorruptLogError),
        (errors.CorruptIndexError, ValueError),
        (errors.CorruptCheckpointError, ValueError),
        (errors.LogDirectoryError, ValueError),
        (errors.MalformedRecordError, ValueError),
        (errors.RemoteSegmentError, ValueError),
        (errors.OptionError, ValueError),
        (errors.InvalidRecordError, ValueError),
        (errors.RecordTooLargeError, ValueError),
        (errors.UnknownTopicOrPartitionError, LookupError),
        (errors.OffsetOutOfRangeError, LookupError),
        (errors.InvalidUtf8Error, ValueError),
        (errors.UndecodableValueError, ValueError),
        (errors.TimestampOverflowError, OverflowError),
        (errors.StorageError, OSError),
        (errors.ArgumentError, TypeError),
    ],
)
def test_errors_are_also_pythons_own(error: type, kind: type) -> None:
    """Code without an import of segmentlog can catch Python's own classes."""
    assert issubclass(error, kind)


def test_an_unsupported_format_is_not_called_corrupt() -> None:
    """The bytes of an unknown format may be correct."""
    assert not issubclass(errors.UnsupportedFormatError, errors.CorruptLogError)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ERRORS[1], ["/d/t-0/0.log", "byte 70", "offset 42", "0xdeadbeef", "0x00000001"]),
        (ERRORS[2], ["/d/t-0/0.log", "byte 70", "offset 42", "its record count is -1"]),
        (ERRORS[3], ["/d/t-0/0.log", "byte 70", "offset 42", "512", "99"]),
        (ERRORS[4], ["/d/t-0/0.log", "byte 70", "offset 42", "producer 1000", "no end marker"]),
        (ERRORS[5], ["/d/t-0/0.index", "entry 3", "segmentlog reindex"]),
        (ERRORS[6], ["/d/replication-offset-checkpoint", "line 4", "found 'x'", "fix it"]),
        (ERRORS[7], ["/d/t-0/0.log", "byte 70", "magic 1"]),
        (ERRORS[8], ["/d: ", "no such file"]),
        (ERRORS[9], ["/d ", "partition 7", "'orders'", "it has partitions 0, 1"]),
        (ERRORS[10], ["/d holds no topic 'orders'"]),
        (ERRORS[11], ["orders-7", "99", "[3, 42)"]),
        (ERRORS[12], ["/d/t-0", "[10, 42)", "0.log is gone", "load the path again"]),
        (ERRORS[14], ["orders-7", "offset 42", str(2**60)]),
        (ERRORS[13], ["/d/t-0/0.log: ", "No space left on device", "free space"]),
        (ERRORS[15], ["'subscribe'", "empty or not given", "name at least one topic"]),
        (ERRORS[17], ["orders-7: ", "row 42", "has no key"]),
        (ERRORS[18], ["orders: ", "row 42", "has no key"]),
        (ERRORS[27], ["orders-7: ", "value", "offset 42", "onInvalidUtf8"]),
        (ERRORS[28], ["orders-7: ", "producer 1000", "epoch 3", "sequence 42", "40 is next"]),
        (ERRORS[29], ["orders-7: ", "producer 1000", "epoch 3", "sequence 42", "take epoch 5"]),
        (ERRORS[30], ["orders-7: ", "producer 1000", "epoch 3", "sequence 42", "since offset 17"]),
        (ERRORS[19], ["orders-7: ", "row 42", "2000000", "1048588", "max.message.bytes"]),
        (ERRORS[31], ["/d ", "a task", "after 0.5 s", "try again"]),
        (
            errors.UndecodableValueError("orders", 7, 42, "value", "it names no schema"),
            ["orders-7: ", "value", "offset 42", "it names no schema", "on_undecodable"],
        ),
        (ERRORS[-1], ["argument 'subscribe' is unknown", "read() takes", "give 'topics'"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_leads_to_the_place_and_to_the_remedy(
    error: SegmentLogError, said: list[str]
) -> None:
    """A message has the file, byte, offset, partition or option that a user needs to look at."""
    assert [] == [words for words in said if words not in str(error)]
