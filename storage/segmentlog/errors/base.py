"""The root of all errors, and errors of options, columns and the system, for reads and writes."""

import errno as codes
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import ClassVar, dataclass_transform

from segmentlog.masking import masked


class ErrorCode(StrEnum):
    """Kinds of errors, for programs and alerts: members are added, never changed or removed."""

    SEGMENT_LOG = "SEGMENT_LOG"
    CORRUPT_LOG = "CORRUPT_LOG"
    CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
    MALFORMED_BATCH = "MALFORMED_BATCH"
    TRUNCATED_BATCH = "TRUNCATED_BATCH"
    TORN_TRANSACTION = "TORN_TRANSACTION"
    CORRUPT_INDEX = "CORRUPT_INDEX"
    CORRUPT_CHECKPOINT = "CORRUPT_CHECKPOINT"
    UNSUPPORTED_FORMAT = "UNSUPPORTED_FORMAT"
    LOG_DIRECTORY = "LOG_DIRECTORY"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    LOG_CHANGED = "LOG_CHANGED"
    TIMESTAMP_OVERFLOW = "TIMESTAMP_OVERFLOW"
    OPTION = "OPTION"
    LOG_LOCKED = "LOG_LOCKED"
    COMMIT_IN_DOUBT = "COMMIT_IN_DOUBT"
    INVALID_RECORD = "INVALID_RECORD"
    RECORD_TOO_LARGE = "RECORD_TOO_LARGE"
    SYNC_FAILED = "SYNC_FAILED"
    OFFSETS_OUT_OF_ORDER = "OFFSETS_OUT_OF_ORDER"
    STAGED_FILE = "STAGED_FILE"
    COLUMN = "COLUMN"
    STORAGE = "STORAGE"
    INVALID_UTF8 = "INVALID_UTF8"
    OUT_OF_ORDER_SEQUENCE = "OUT_OF_ORDER_SEQUENCE"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    INVALID_TXN_STATE = "INVALID_TXN_STATE"
    STREAM_BATCH = "STREAM_BATCH"
    STREAM_OFFSET = "STREAM_OFFSET"
    MALFORMED_RECORD = "MALFORMED_RECORD"
    REMOTE_SEGMENT = "REMOTE_SEGMENT"
    KERNELS = "KERNELS"
    ARGUMENT = "ARGUMENT"
    SPLIT_KEY = "SPLIT_KEY"


@dataclass_transform(eq_default=False)
class SegmentLogError(Exception):
    """Base of all errors of segmentlog; the annotations of a subclass are its arguments."""

    code: ClassVar[ErrorCode] = ErrorCode.SEGMENT_LOG
    _message: ClassVar[str] = ""  # with the names of the arguments in braces

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        # Pickles and copies of an error are made from `args`.
        self.args = tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self._message.format_map(vars(self)) if self._message else super().__str__()


class KernelsError(SegmentLogError, ImportError):
    """The compiled kernels are missing, or were made from other sources."""

    code = ErrorCode.KERNELS
    reason: str


class OptionError(SegmentLogError, ValueError):
    """An option with a value that is not accepted, or a name that does not exist."""

    code = ErrorCode.OPTION
    #: whether `option` is a name that does not exist, as the user has given it
    is_unknown = False
    option: str
    value: str
    accepted: str

    def __post_init__(self) -> None:
        if isinstance(self.value, str):  # a caller without types may have given anything
            # a URL with a password, or a client's setting
            self.value = masked(self.option, self.value) or ""
        super().__post_init__()

    def __str__(self) -> str:
        found = repr(self.value) if self.value else "empty or not given"
        return f"option {self.option!r} is {found}; {self.accepted}"


class ArgumentError(OptionError, TypeError):
    """A keyword that a function does not take; `option` is its name."""

    code = ErrorCode.ARGUMENT

    def __str__(self) -> str:
        return f"argument {self.option!r} is unknown; {self.accepted}"


class ColumnError(OptionError):
    """A column that is missing or wrong; `option` is its name, `value` its type or its fault."""

    code = ErrorCode.COLUMN

    def __str__(self) -> str:
        return f"column {self.option!r} is {self.value}; {self.accepted}"


_NOT_YOURS = "run as the owner of the directory, or make this user the owner"
_READ_EARLIER = "finish the read before the process ends"

_REMEDIES = {
    codes.ENOSPC: "free space on its file system, then write again",
    codes.EDQUOT: "free space within the quota, or have the quota raised, then write again",
    codes.EACCES: _NOT_YOURS,
    codes.EPERM: _NOT_YOURS,
    codes.EROFS: "mount the file system for writing; after disk errors the system mounts it "
    "read-only, and the system's log shows these errors",
    codes.EIO: "the disk or its server has failed: read the system's log, check the disk, then "
    "try again",
    codes.ESTALE: "the file was replaced or removed: try again",
    codes.EMFILE: "the process has reached its limit of open files: close some, or raise the "
    "limit (ulimit -n)",
    codes.ENFILE: "the system has reached its limit of open files (fs.file-max): close some",
    codes.ECANCELED: _READ_EARLIER,
    codes.EDEADLK: "open the directory and read it in one process",
}


_CREDENTIALS = (
    "give credentials in the environment of every process that reads or writes, or in the URL, "
    "and the right to do this"
)

#: Remedies for a file at a URL: no disk of this machine is at fault.
_REMEDIES_OF_STORES = {
    codes.EACCES: _CREDENTIALS,
    codes.EPERM: _CREDENTIALS,
    codes.ETIMEDOUT: "check the network and the endpoint, then try again",
    codes.ENOENT: "check the bucket and the path",
    codes.ECANCELED: _READ_EARLIER,
}
_REMEDY_OF_STORES = "check the network, the endpoint and the state of the store, then try again"


class StorageError(SegmentLogError, OSError):
    """The system or a store refused or failed an operation on a file or directory.

    `errno`: number of the system's error, or 0 if it gives none.  `strerror`: the system's
    message.  `filename`: the file or directory, with the scheme of a URL; empty if the system does
    not name it.
    """

    code = ErrorCode.STORAGE

    def __init__(self, errno: int, strerror: str, filename: str = "") -> None:
        super().__init__(errno, strerror, filename)

    def __str__(self) -> str:
        remedies, other = _REMEDIES, "check that it exists and is readable, then try again"
        if "://" in str(self.filename):
            remedies, other = _REMEDIES_OF_STORES, _REMEDY_OF_STORES
        remedy = remedies.get(self.errno or 0, other)
        where = f"{self.filename}: " if self.filename else ""
        return f"{where}{self.strerror}: {remedy}"
