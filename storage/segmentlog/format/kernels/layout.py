"""Byte layout of a record batch, magic 2 (``org.apache.kafka.common.record.DefaultRecordBatch``).

::

     0               8       12      16  17      21    23      27
    +---------------+-------+-------+---+-------+-----+-------+---
    | base offset   | batch | leader|mag| crc32c|attri| last  | ...
    |               | length| epoch |ic |       |butes| delta |
    +---------------+-------+-------+---+-------+-----+-------+---
     27              35              43              51    53      57      61
    +---------------+---------------+---------------+-----+-------+-------+----
    | base          | max           | producer id   |epoch| base  | record| records, perhaps
    | timestamp     | timestamp     |               |     | seque.| count | compressed as one
    +---------------+---------------+---------------+-----+-------+-------+----

All integers are big-endian and signed, except the checksum.  ``batch length`` counts the bytes
after itself, so a batch is ``batch length + 12`` bytes long.  The checksum covers everything
after itself: base offset, length, leader epoch and magic may change in place, and no checksum
detects damage to them.

Messages of magic 0 and 1 (``LegacyRecord``) share only offset, length and the place of the magic::

     0               8       12      16  17  18              26      30
    +---------------+-------+-------+---+---+---------------+-------+-----+-------+-------
    | offset        | size  | crc32 |mag|att| timestamp     | key   | key | value | value
    |               |       | (IEEE)|ic |rib| (magic 1 only)| length|     | length|
    +---------------+-------+-------+---+---+---------------+-------+-----+-------+-------

Each message is a batch of one record.  A compressed message is a wrapper: its value inflates to a
set of such messages, and its offset is the offset of the last of them.
"""

#: Base offset and batch length: what precedes the counted bytes, in every format.
LOG_OVERHEAD = 12

BASE_OFFSET_AT = 0
BATCH_LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORDS_COUNT_AT = 57

#: Size of the header, and so of a batch without records.
HEADER_BYTES = 61

#: Offsets that one segment may span: its indexes hold them relative to its base, in 31 bits
#: (``LogSegment.canConvertToRelativeOffset``).
SEGMENT_OFFSETS = 1 << 31

#: Bytes that determine the format of any batch: everything up to and including the magic.
MAGIC_PREFIX_BYTES = 17

#: Least value of ``batch length``: 49 bytes of header follow it.
MIN_BATCH_LENGTH = HEADER_BYTES - LOG_OVERHEAD

#: Least size field of magic 0, the smallest of all formats; fewer bytes are not a batch.
MIN_LEGACY_LENGTH = 14

#: Least size field of magic 1.
MIN_TIMESTAMPED_LENGTH = 22

#: Magic of the batches that are written; the layout above is theirs.
MAGIC = 2

#: Lower magics are messages, which have no batch header.
FIRST_BATCH_MAGIC = 2

#: Higher magics are formats that this version does not know.
NEWEST_MAGIC = 2

# By magic.
MIN_LENGTHS = (MIN_LEGACY_LENGTH, MIN_TIMESTAMPED_LENGTH, MIN_BATCH_LENGTH)
HEADER_SIZES = (18, 26, HEADER_BYTES)  #: bytes before key, value or records

#: Size of the smallest possible batch of any format.
SMALLEST_BATCH_BYTES = LOG_OVERHEAD + MIN_LEGACY_LENGTH

LEGACY_CRC_AT = 12
LEGACY_ATTRIBUTES_AT = 17
LEGACY_TIMESTAMP_AT = 18
#: Position of the key's length: in magic 1 after the timestamp, in magic 0 in its place.
LEGACY_KEY_AT = (18, 26)

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40
#: Set only in the table of headers, not on disk: a message of magic 0 or 1 …
LEGACY_MASK = 0x100
#: … and one of magic 0, which has no timestamp.
NO_TIMESTAMP_MASK = 0x200

# Timestamps whose microseconds fit 64 bits: Arrow's type has microseconds.
SMALLEST_MS = -((2**63) // 1000)
LARGEST_MS = (2**63 - 1) // 1000

#: Bytes that a registry's serializers put before a value: a 0, and the id of its schema.
FRAME_BYTES = 5

# Columns of the int64 matrix that `format.kernels.scan` fills, with one row for each batch.
POSITION = 0  #: byte of the buffer at which the batch starts
SIZE = 1  #: bytes of the batch, header included
BASE_OFFSET = 2  #: for a wrapper that is not inflated, the least possible value
LAST_OFFSET = 3
ATTRIBUTES = 4  #: the low byte; readers ignore the high one, as Kafka does
BASE_TIMESTAMP = 5
MAX_TIMESTAMP = 6
PRODUCER_ID = 7
RECORDS_COUNT = 8  #: for a wrapper that is not inflated, 0
RECORDS_START = 9  #: first byte of the records, in the buffer or in the inflated buffer
RECORDS_END = 10
OFFSET_SHIFT = 11  #: for a wrapper, the base of the relative offsets inside
N_HEADER_COLUMNS = 12
