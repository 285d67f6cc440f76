"""The status that a kernel reports: an integer, because a kernel cannot raise.

`OK` and the states up to `SCRATCH_FULL` are not errors.  From `BAD_LENGTH` to `NO_BATCH`, a batch
is at fault, and `REASONS` has the words for `segmentlog.errors.MalformedBatchError`.  From
`BAD_ROW` on, a row to be written is at fault (`ROW_REASONS`).
"""

OK = 0
#: More batches may follow, but the table of headers is full.
TABLE_FULL = 1
#: The buffer ends inside a batch; the caller reads more.
NEED_MORE = 2
#: The next record does not fit the output; call again with empty buffers.
OUTPUT_FULL = 3
#: The next row belongs to the next batch.
BATCH_FULL = 4
#: The next batch is not of the usual kind, or damaged; the careful kernels take it.
UNUSUAL = 5
#: The next batch is compressed, and its codec's functions were not asked for.
CODEC_NEEDED = 6
#: The next batch inflates to more bytes than the scratch memory has.
SCRATCH_FULL = 7
BAD_LENGTH = 10
BAD_MAGIC = 11
BAD_CRC = 12
BAD_RECORDS_COUNT = 13
BAD_OFFSET_DELTA = 14
OFFSETS_GO_BACK = 15
RECORD_TOO_LONG = 16
RECORD_LENGTH_MISMATCH = 17
BAD_VARINT = 18
BAD_KEY_LENGTH = 19
BAD_VALUE_LENGTH = 20
BAD_HEADERS_COUNT = 21
BAD_HEADER_KEY = 22
BAD_HEADER_VALUE = 23
TRAILING_BYTES = 24
RECORD_OFFSET_OUTSIDE = 25
TIMESTAMP_OVERFLOW = 26
WRAPPER_WITHOUT_VALUE = 27
MESSAGE_CUT_SHORT = 28
BAD_INNER_MAGIC = 29
BAD_INNER_CRC = 30
NESTED_WRAPPER = 31
EMPTY_WRAPPER = 32
INNER_OFFSET_OUTSIDE = 33
CODEC_TOO_NEW = 34
BAD_MARKER = 35
NO_BATCH = 36

# Faults of a row to be written.
BAD_ROW = 50
BAD_TIMESTAMP = 52
BAD_OFFSET = 53
BAD_PARTITION = 54
NULL_HEADER_KEY = 55
RECORD_TOO_LARGE = 56

REASONS = {
    BAD_LENGTH: "its length field is smaller than a batch header",
    BAD_RECORDS_COUNT: "its record count is negative, or more than its bytes or its offsets can "
    "hold",
    BAD_OFFSET_DELTA: "its last offset delta is negative or runs past the largest offset",
    OFFSETS_GO_BACK: "its base offset is not above the last offset of the batch before it",
    RECORD_TOO_LONG: "a record claims more bytes than the batch has left",
    RECORD_LENGTH_MISMATCH: "a record's fields do not add up to its length",
    BAD_VARINT: "a variable-length integer does not end",
    BAD_KEY_LENGTH: "a record's key claims more bytes than the record has left",
    BAD_VALUE_LENGTH: "a record's value claims more bytes than the record has left",
    BAD_HEADERS_COUNT: "a record's header count is negative or more than its bytes can hold",
    BAD_HEADER_KEY: "a record header's key is null or longer than the record",
    BAD_HEADER_VALUE: "a record header's value is longer than the record",
    TRAILING_BYTES: "bytes are left over after its last record",
    RECORD_OFFSET_OUTSIDE: "a record's offset is outside the batch, or not above the previous one",
    BAD_MARKER: "it is a transaction's end marker, but neither commits nor aborts",
    CODEC_TOO_NEW: "it is compressed as zstd, which messages of magic 0 and 1 cannot be",
    WRAPPER_WITHOUT_VALUE: "it is compressed, but holds nothing",
    MESSAGE_CUT_SHORT: "a message inside it claims more bytes than it has left",
    BAD_INNER_MAGIC: "a message inside it is neither of magic 0 nor of magic 1",
    BAD_INNER_CRC: "a message inside it does not have the checksum stored beside it",
    NESTED_WRAPPER: "a message inside it is compressed once more",
    EMPTY_WRAPPER: "it is compressed, but holds no message",
    INNER_OFFSET_OUTSIDE: "a message inside it has an offset that is not above the one before it, "
    "or the last offset is not the wrapper's",
    NO_BATCH: "these bytes are not a batch: neither their magic nor their base offset is possible",
}

#: The words for rows and `segmentlog.errors.InvalidRecordError`.
ROW_REASONS = {
    BAD_ROW: "the row does not exist",
    BAD_TIMESTAMP: "its timestamp is below -1, which stands for no timestamp",
    BAD_OFFSET: "its offset is negative, too large, or not above the offset of the row before",
    NULL_HEADER_KEY: "one of its headers, or a header's key, is null",
}
