"""The options of reads of records, each declared once; see `segmentlog.declared`.

A group has the options of one kind.  A read takes the groups that mean something to it, and no
others: `latest` has no option that leaves out records before or between others, because the key of
a deleted record would come back.  ``tests/architecture/test_read_options.py`` tries all options
with all reads.
"""

import os
from collections.abc import Collection, Mapping
from typing import Annotated, TypedDict

from segmentlog.declared import SPARK_READ, Declared, Words, declared
from segmentlog.model import (
    BYTES_OR_TEXT,
    MAX_INFLATED_BATCH_BYTES,
    IsolationLevel,
    OnCorruptBatch,
    OnInvalidUtf8,
    OnUndecodable,
    ReadUpTo,
    RemoteStorageLayout,
    Replicas,
    ScanPolicy,
    Time,
    ValueFrame,
)


class SinceOptions(TypedDict, total=False):
    """Where partitions start."""

    since: Annotated[
        Time | None,
        Declared(
            "where each partition starts: at its first record of this time or later, or at its "
            "end if every record is older. A time is a text in ISO 8601 with its zone "
            "(`2026-01-31T10:00:00Z`), a date, epoch milliseconds, a datetime with its time zone; "
            "or a duration before now (`2h`, a timedelta). Records after that one may be older",
            idea="records at or after a time",
            help="Only records at or after this time.",
            spark="startingTimestamp",
            is_row_of_spark=False,
            words=Words(
                "startingTimestamp since startingOffsetsByTimestamp",
                "lastDuration timestamp",
                {
                    SPARK_READ: "give 'startingTimestamp', or 'lastDuration' for a time before "
                    "now",
                    "segmentlog cat": "give -o @TIME",
                },
            ),
            example="2100-01-01",
        ),
    ]


class EndOptions(TypedDict, total=False):
    """Where partitions end, and which of their records are good."""

    until: Annotated[
        Time | None,
        Declared(
            "where each partition ends: before its first record of this time or later. A time has "
            "the forms of {since}. Records after that one may be older",
            idea="records before a time",
            help="Only records before this time.",
            spark="endingTimestamp",
            is_row_of_spark=False,
            words=Words(
                "endingTimestamp until endingOffsetsByTimestamp",
                "before",
                {"segmentlog cat": "give -o e@TIME"},
            ),
            example="2100-01-01",
        ),
    ]
    fail_on_data_loss: Annotated[
        bool,
        Declared(
            "if a part of the range is gone or not yet written, such as the last segments of a "
            "log, or a partition that a checkpoint names: `true` fails the read, `false` reads "
            "the rest and logs what is left out",
            default=True,
            idea="lost partitions and segments",
        ),
    ]
    isolation_level: Annotated[
        IsolationLevel | str,
        Declared(
            "`read_committed` leaves out the records of aborted transactions, and ends at the "
            "last stable offset",
            IsolationLevel.READ_UNCOMMITTED,
            idea="committed transactions only",
            spark="kafka.isolation.level",
        ),
    ]
    on_corrupt_batch: Annotated[
        OnCorruptBatch | str,
        Declared(
            "at a corrupt batch: `fail` fails the read, `skip` leaves the batch out and logs its "
            "offsets",
            OnCorruptBatch.FAIL,
            idea="corrupt batches",
            help="skip leaves out damaged batches, and logs their offsets on standard error.",
        ),
    ]
    read_up_to: Annotated[
        ReadUpTo | str,
        Declared(
            "where the newest data ends: `highWatermark` is the checkpointed high watermark, or "
            "the log end if there is no checkpoint; `logEnd` is the end of the last whole batch",
            ReadUpTo.HIGH_WATERMARK,
            idea="the meaning of *latest*",
            help="Where to stop reading: a crashed broker's high watermark is up to five seconds "
            "old, so acknowledged records may lie after it. A warning names the records that are "
            "left out.",
        ),
    ]


class BoundsOptions(SinceOptions, EndOptions, total=False):
    """The offsets of a log that a read returns: those of `Log.bounds`."""

    last: Annotated[
        int | None,
        Declared(
            "instead of an offset: each partition starts this number of offsets before its end; "
            "with {since}, at the later of the two offsets",
            least=1,
            idea="the last records of each partition",
            help="Only the last N offsets of each log.",
            spark="lastRecords",
            is_row_of_spark=False,
            words=Words(
                "lastRecords last", "", {"segmentlog cat": "give -o -10 for the last ten"}
            ),
        ),
    ]


class FormOptions(TypedDict, total=False):
    """How rows look."""

    include_headers: Annotated[
        bool,
        Declared(
            "adds the column `headers`",
            default=False,
            idea="headers",
            words=Words("includeHeaders", "headers header"),
        ),
    ]
    strings: Annotated[
        bool,
        Declared(
            "whether `key` and `value` are strings instead of binary; {on_invalid_utf8} decides "
            "what happens to bytes that are not UTF-8",
            default=False,
            idea="keys and values as text",
        ),
    ]
    on_invalid_utf8: Annotated[
        OnInvalidUtf8 | str,
        Declared(
            "what happens to a key or value that is read as text and is not UTF-8: `fail` fails "
            "the read, `null` makes it null, `replace` puts U+FFFD in place of the bad bytes",
            OnInvalidUtf8.FAIL,
            idea="text that is not UTF-8",
        ),
    ]


class DecodeOptions(TypedDict, total=False):
    """Keys and values as the columns of their schemas.

    `Log.scan` does not take this group: a log does not know where the schemas are.
    """

    decode: Annotated[
        str | Collection[str] | None,
        Declared(
            "which of `key` and `value` become columns of their schemas, which a registry has "
            "left in the topic `_schemas` of the same directories",
            idea="keys and values by their schemas",
            accepts="`key`, `value`, or `key,value`",
            words=Words("decode", "deserialize avro", {}),
            example="value",
        ),
    ]
    decode_subject: Annotated[
        str | None,
        Declared(
            "with {decode}: the subject whose schema the column has; values of other schemas are "
            "resolved to it",
            idea="the subject of a schema registry",
            accepts="a subject",
            shown_default="`TOPIC-value` or `TOPIC-key`",
            example="orders-value",
        ),
    ]
    decode_version: Annotated[
        int | None,
        Declared(
            "with {decode}: the version of the subject",
            least=1,
            idea="the version of a schema",
            shown_default="the newest that is not deleted",
        ),
    ]
    decode_schemas: Annotated[
        str | os.PathLike[str] | None,
        Declared(
            "with {decode}: where schemas are, if not in the same directories: another log "
            "directory, the address of a registry (`https://user:password@host:port`), or a file "
            "(`*.avsc`, `*.proto`, `*.json`), whose schema all values have",
            idea="schemas from elsewhere",
            accepts="a path or a URL",
            shown_default="the same directories",
            metavar="PLACE",
            words=Words("decodeSchemas", "schemaRegistryUrl schema.registry.url -r"),
            example="/s",
        ),
    ]
    decode_frame: Annotated[
        ValueFrame | str | None,
        Declared(
            "with {decode}: what names the schema of a value: the frame of the serializers of "
            "`confluent`, `apicurio` or `glue`, or `none` for values without one",
            idea="the frame of a value",
            shown_default="that of Confluent",
            example="apicurio",
        ),
    ]
    on_undecodable: Annotated[
        OnUndecodable | str,
        Declared(
            "with {decode}: `fail` ends the read at the first key or value that cannot be "
            "decoded; `null` makes it null, and adds a column `undecodable` with the cause; "
            "`skip` leaves the row out, and logs how many were left out, and why",
            OnUndecodable.FAIL,
            idea="keys and values that cannot be decoded",
        ),
    ]


#: The options that ask for keys or values as columns of their schemas, or belong to it.
DECODES = ("decode", "decode_subject", "decode_version", "decode_schemas", "decode_frame")


class LoadOptions(TypedDict, total=False):
    """What a read takes of a machine."""

    max_inflated_batch_bytes: Annotated[
        int,
        Declared(
            "a compressed batch that inflates to more bytes than this counts as corrupt",
            MAX_INFLATED_BATCH_BYTES,
            least=1,
            unit="bytes",
            idea="the largest inflated batch",
            shown_default="`256m`",
        ),
    ]
    max_bytes_per_second: Annotated[
        int | None,
        Declared(
            "the most bytes of `.log` files that are read in a second, so that the disk serves a "
            "broker, too; all processes of the user on one machine that read or write the log "
            "directory with a limit share it",
            least=1,
            unit="bytes",
            idea="a limit of bytes per second",
            shown_default="no limit",
            example=1 << 30,
        ),
    ]
    spare_page_cache: Annotated[
        bool,
        Declared(
            "whether pages of files that the read brings into the page cache leave it, so that a "
            "broker's own pages stay; has an effect on Linux, for users who may write to the "
            "files",
            default=False,
            idea="an unchanged page cache",
        ),
    ]


class SelectionOptions(TypedDict, total=False):
    """Which records between the bounds are returned: today all, but for a filter of columns.

    `latest`, `audit` and `Log.bounds` do not take this group.
    """


class CountOptions(TypedDict, total=False):
    """What a read that only counts checks."""

    check_crcs: Annotated[
        bool,
        Declared(
            "whether checksums are checked when rows are only counted: with `false`, a read "
            "without columns, or of `topic`, `partition` and `timestampType` alone, takes the "
            "number of rows from the headers of batches, and reads little more of local files. "
            "Damage inside batches stays unnoticed. Reads of other columns check all that they "
            "read",
            default=True,
            idea="rows counted without checksums",
            spark="kafka.check.crcs",
        ),
    ]


class ScanOptions(
    BoundsOptions, SelectionOptions, FormOptions, LoadOptions, CountOptions, total=False
):
    """Those of `Log.scan`."""


class OffsetsOptions(TypedDict, total=False):
    """Bounds of single partitions."""

    starting_offsets: Annotated[
        Mapping[tuple[str, int], int] | None,
        Declared(
            "where single partitions start, by (topic, partition); they alone do not start where "
            "other options say",
            idea="offsets to start at",
            spark="startingOffsets",
            is_row_of_spark=False,
            words=Words(
                "startingOffsets start_offset -o", "offset auto.offset.reset from_beginning"
            ),
            example={("orders", 0): 1},
        ),
    ]
    ending_offsets: Annotated[
        Mapping[tuple[str, int], int] | None,
        Declared(
            "where single partitions end, exclusive, by (topic, partition)",
            idea="offsets to end before",
            spark="endingOffsets",
            is_row_of_spark=False,
            words=Words(
                "endingOffsets end_offset", "", {"segmentlog cat": "give -c, or -o e@TIME"}
            ),
            example={("orders", 0): 2},
        ),
    ]


class CopiesOptions(TypedDict, total=False):
    """What several directories are."""

    replicas: Annotated[
        Replicas | str,
        Declared(
            "if several of the directories have the same partition: `refuse` refuses the read; "
            "`reconcile` takes the directories as those of the brokers of one cluster, and "
            "returns the log that the cluster would serve",
            Replicas.REFUSE,
            idea="a partition in several directories",
        ),
    ]
    include_deleted_topics: Annotated[
        bool,
        Declared(
            "with {replicas} as `reconcile`: whether topics that the cluster has deleted, by its "
            "newest metadata, and of which a broker still has logs, are read; by default they are "
            "left out, with a warning",
            default=False,
            idea="topics that the cluster has deleted",
            help="Also topics that the cluster has deleted, of which a broker still has logs.",
        ),
    ]


class TierOptions(TypedDict, total=False):
    """The tier of a directory."""

    remote_storage: Annotated[
        str | os.PathLike[str] | None,
        Declared(
            "the tier into which the brokers have copied segments (KIP-405): partitions begin "
            "with their remote segments; without a log directory, the partitions of the tier are "
            "read. It is a directory, or a URL with the prefix of its keys",
            idea="the segments in a tier",
            accepts="a path or a URL",
            metavar="DIR",
            example="/t",
        ),
    ]
    remote_storage_layout: Annotated[
        RemoteStorageLayout | str | None,
        Declared(
            "the layout of the tier, `local` by default: that of Kafka's own "
            "`LocalTieredStorage`, or `aiven`, that of Aiven's plugin (S3, GCS, Azure, files)",
            idea="the layout of a tier",
            shown_default="`local`",
            example="aiven",
        ),
    ]
    remote_storage_key_file: Annotated[
        str | os.PathLike[str] | None,
        Declared(
            "PEM files of the private keys of an encrypted tier, which all processes that read "
            "need",
            idea="the keys of an encrypted tier",
            accepts="a path, or pairs such as `key-1=/k1.pem,key-2=/k2.pem`",
            metavar="FILE",
            example="/k",
        ),
    ]


class SourceOptions(CopiesOptions, TierOptions, total=False):
    """What the paths of a read are."""


class DatasetOptions(OffsetsOptions, ScanOptions, DecodeOptions, SourceOptions, total=False):
    """Those of `segmentlog.dataset` and `read`."""


class LatestOptions(
    OffsetsOptions,
    EndOptions,
    FormOptions,
    LoadOptions,
    DecodeOptions,
    SourceOptions,
    total=False,
):
    """Those of `segmentlog.latest`."""


class AuditOptions(
    OffsetsOptions, SinceOptions, EndOptions, LoadOptions, SourceOptions, total=False
):
    """Those of `segmentlog.audit`."""


#: All options of reads, by their names.
READ_OPTIONS = declared(DatasetOptions)


def scan_policy(given: Mapping[str, object]) -> ScanPolicy:
    """The policy of a read with checked options: those that are fields of a `ScanPolicy`."""
    of_policy = {name: given[name] for name in ScanPolicy._fields if name in given}
    text = BYTES_OR_TEXT if given.get("strings") else ()
    return ScanPolicy(**of_policy, text=text)  # type: ignore[arg-type]
