"""From rows of the source to rows of the clone: with new values, ids and partitions.

Ids of schemas in keys, values and headers become those of another registry.  Their forms are those
of `segmentlog.kafka_tables.registry`: a byte 0 and four bytes of the id stand before a value; or a
header has them, or a byte 1 and the 16 bytes of a GUID.  If a record has the header, its value has
no frame.
"""

import inspect
import traceback
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from segmentlog.arguments import refused
from segmentlog.errors import ColumnError, OptionError
from segmentlog.format.kernels.memory import Int32s, Int64s
from segmentlog.format.records.encoder import cast_column, headers_type, record_source
from segmentlog.maintain.cloning.clone import NullKeys, SchemaIds, Transform
from segmentlog.writes.stager import Partitioner

if TYPE_CHECKING:
    from segmentlog.decoding.masks import FieldMasks

_ID_AT, _ID_BYTES, _GUID_AT, _GUID_BYTES = 1, 4, 1, 16
_MOST_SHOWN = 300  #: characters of what a transform's error says
_MOST_UNKNOWN = 20  #: ids that are noted: values that only look framed have any number of them


class NewIds:
    """Replaces the ids of one column, ``key`` or ``value``, and of its header.

    `ids`: as `CloneSettings` accepts them.  `column`: its name.  `unknown`: some of the ids that
    were met and that `ids` does not have.
    """

    def __init__(self, ids: SchemaIds, column: str) -> None:
        numbers = sorted((old, new) for old, new in ids.items() if not isinstance(old, str))
        pairs: NDArray[np.int64] = np.array(numbers, np.int64).reshape(-1, 2)
        self._old, self._new = pairs[:, 0], pairs[:, 1].astype(">i4").view(np.uint8).reshape(-1, 4)
        self._guids = [
            tuple(np.frombuffer(uuid.UUID(each).bytes, np.uint8) for each in (old, str(new)))
            for old, new in ids.items()
            if isinstance(old, str)
        ]
        self._column = column
        self._header = pa.scalar(f"__{column}_schema_id".encode(), pa.binary())
        self.unknown: set[int] = set()

    def replaced(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the new ids."""
        values = cast_column(self._column, rows[self._column], pa.binary())
        is_framed = np.ones(len(rows), bool)
        at = rows.schema.get_field_index("headers")
        if at >= 0 and len(rows):
            headers = rows.column(at)
            headers = cast_column("headers", headers, headers_type(headers.type, pa.binary()))
            pairs = headers.values.flatten()
            is_named = pc.fill_null(pc.equal(pairs[0], self._header), False)
            if is_named.true_count:
                named = is_named.to_numpy(zero_copy_only=False)
                at_headers, ends = np.flatnonzero(named), headers.offsets.to_numpy()
                owners = np.searchsorted(ends, at_headers, "right") - 1
                is_framed[owners[(owners >= 0) & (owners < len(rows))]] = False
                values_of = self._in_frames(cast_column("headers", pairs[1], pa.binary()), named)
                rows = rows.set_column(at, "headers", _with_values(headers, values_of))
        number = rows.schema.get_field_index(self._column)
        return rows.set_column(number, self._column, self._in_frames(values, is_framed))

    def _in_frames(self, values: pa.Array, is_framed: NDArray[np.bool_]) -> pa.Array:
        """Values with new ids, where they are frames."""
        if not len(values) or values.buffers()[2] is None:
            return values
        validity, ends, data = values.buffers()
        bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
        found = np.frombuffer(data, np.uint8)
        rows = np.flatnonzero(is_framed & (np.diff(bounds) > _ID_BYTES))
        if values.null_count:
            rows = rows[values.is_valid().to_numpy(zero_copy_only=False)[rows]]
        begins = bounds[rows].astype(np.int64)
        kinds = found[begins]
        changed = found.copy()
        at = begins[kinds == 0][:, None] + np.arange(_ID_AT, _ID_AT + _ID_BYTES)
        ids = np.ascontiguousarray(found[at]).view(">i4")[:, 0].astype(np.int64)
        places = np.searchsorted(self._old, ids)
        is_known = places < len(self._old)
        is_known[is_known] = self._old[places[is_known]] == ids[is_known]
        changed[at[is_known]] = self._new[places[is_known]]
        if len(self.unknown) < _MOST_UNKNOWN:
            unknown = np.unique(ids[~is_known & (ids >= 0)])
            self.unknown.update(unknown[:_MOST_UNKNOWN].tolist())
        if self._guids:
            lengths = np.diff(bounds)[rows]
            begins = begins[(kinds == 1) & (lengths > _GUID_BYTES)]
            at = begins[:, None] + np.arange(_GUID_AT, _GUID_AT + _GUID_BYTES)
            guids = found[at]
            for old, new in self._guids:
                changed[at[(guids == old).all(axis=1)]] = new
        buffers = [validity, ends, pa.py_buffer(changed)]
        return pa.Array.from_buffers(
            values.type, len(values), buffers, values.null_count, values.offset
        )


def _with_values(headers: pa.Array, values: pa.Array) -> pa.Array:
    pairs = pa.StructArray.from_arrays(
        [headers.values.flatten()[0], values], fields=list(headers.type.value_type)
    )
    return pa.Array.from_buffers(
        headers.type,
        len(headers),
        headers.buffers()[:2],
        headers.null_count,
        headers.offset,
        children=[pairs],
    )


#: Columns of the rows that are read, and that a transform returns.
COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")


@dataclass(frozen=True, slots=True)
class RowRules:
    """What becomes of a row.  It is picklable if `transform` is.

    `topic`: of the source, for messages.  `n_source`, `n_target`: partitions.  `keeps_partitions`:
    whether rows stay in the partition of their number.  `is_checked`: whether a key has to be in
    one partition alone.
    """

    topic: str
    n_source: int
    n_target: int
    keeps_partitions: bool
    is_checked: bool
    batch_size: int
    null_keys: NullKeys = NullKeys.SPREAD
    transform: Transform | None = None
    masks: "Sequence[FieldMasks]" = ()
    schema_ids: SchemaIds = field(default_factory=dict)
    key_schema_ids: SchemaIds = field(default_factory=dict)

    @property
    def changes_rows(self) -> bool:
        """Whether keys or values may become others."""
        return self.transform is not None or bool(self.masks)


class Cloned(NamedTuple):
    """Rows of a clone, with the columns `COLUMNS`, and where they come from and go to.

    `partitions`, `targets`: int32 arrays, shape (n_rows,): the old and the new partition.
    `offsets`: int64 array, shape (n_rows,): the old ones.
    """

    rows: pa.RecordBatch
    partitions: Int32s
    offsets: Int64s
    targets: Int32s


class Changes(NamedTuple):
    """What a transform has done: rows with another key or value, rows that it has left out.

    `others`: whether a header or a time was changed.
    """

    n_keys: int = 0
    n_values: int = 0
    n_left_out: int = 0
    others: bool = False

    @classmethod
    def of(cls, before: pa.RecordBatch, after: pa.RecordBatch, n_left_out: int) -> "Changes":
        """Those of some rows, of which `n_left_out` more were left out."""
        n_keys, n_values = (
            _n_others(each, before[each], after[each]) for each in ("key", "value")
        )
        others = not all(before[each].equals(after[each]) for each in COLUMNS[4:])
        return cls(n_keys, n_values, n_left_out, others)

    def __add__(self, other: object) -> "Changes":
        """Both together."""
        assert isinstance(other, Changes)  # noqa: S101 - a tuple may be added to any tuple
        return Changes(
            self.n_keys + other.n_keys,
            self.n_values + other.n_values,
            self.n_left_out + other.n_left_out,
            self.others or other.others,
        )


class RowMaker:
    """Makes rows of a clone, one batch after the other.

    `first_partition`: the partition that rows without a key begin with.  `is_misplaced`: whether a
    row was met that the Java client's partitioner would not have put where it is.  Only then can a
    key be in two partitions: one of the two is not that of its hash.  `changes`: what the
    transform has done.
    """

    def __init__(self, rules: RowRules, first_partition: int = 0) -> None:
        self._rules = rules
        self._target = Partitioner(rules.topic, rules.n_target, rules.batch_size, first_partition)
        self._source = Partitioner(rules.topic, rules.n_source, rules.batch_size)
        given = {"value": rules.schema_ids, "key": rules.key_schema_ids}
        self._ids = [NewIds(ids, column) for column, ids in given.items() if ids]
        self.is_misplaced = False
        self.changes = Changes()

    @property
    def unknown_ids(self) -> set[int]:
        """Some of the ids of schemas that were met and that no map has."""
        return set[int]().union(*(each.unknown for each in self._ids))

    def changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with their new keys, values and headers.

        Raises `OptionError` or `ColumnError` if the transform has returned other rows, and
        `UndecodableValueError` for a value that is masked and cannot be decoded.
        """
        rules, rows, kept = self._rules, batch, batch
        if rules.transform is not None:
            rows, kept = _transformed(rules.transform, batch)
        for mask in rules.masks:
            at = rows.schema.get_field_index(mask.column)
            rows = rows.set_column(at, mask.column, mask.masked(rows, rules.topic))
        if rules.changes_rows:
            self.changes += Changes.of(kept, rows, batch.num_rows - rows.num_rows)
        for each in self._ids:
            rows = each.replaced(rows)
        return rows

    def make(self, batch: pa.RecordBatch) -> Cloned:
        """The rows, with their new partitions.

        Raises `OptionError` or `ColumnError` as `changed` does, and for a row without a key if
        such rows are refused.
        """
        rows = self.changed(batch)
        partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        targets = partitions
        if self._rules.null_keys is NullKeys.REFUSE and (n_null := rows["key"].null_count):
            at = pc.index(rows["key"].is_null(), True).as_py()
            accepted = (
                f"{self._rules.topic}-{partitions[at]} has a record without a key at offset "
                f"{offsets[at]}, and {n_null - 1} more in its batch: 'keep-order' puts all of one "
                "partition into one partition, and 'spread' puts them into any"
            )
            raise OptionError("null_keys", "refuse", accepted)
        if not self._rules.keeps_partitions and len(rows):
            targets = self._chosen(rows, partitions)
        return Cloned(rows, partitions, offsets, targets)

    def _chosen(self, rows: pa.RecordBatch, partitions: Int32s) -> Int32s:
        rules, keys = self._rules, rows["key"]
        source = record_source(rows.select(["key", "value"]), np.zeros(len(rows), np.int64))
        has_key = None
        if keys.null_count:
            has_key = keys.is_valid().to_numpy(zero_copy_only=False)
        explicit = None
        if has_key is not None and rules.null_keys is NullKeys.KEEP_ORDER:
            explicit = pa.array(partitions % np.int32(rules.n_target), mask=has_key)
        targets = self._target.choose(source, explicit)
        if rules.is_checked and not self.is_misplaced:
            is_same = rules.n_source == rules.n_target
            at_home = (targets if is_same else self._source.choose(source)) == partitions
            self.is_misplaced = not (at_home if has_key is None else at_home[has_key]).all()
        return targets


def _transformed(
    transform: Transform, batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """What a transform returns for a batch, if it has only rows of the batch; and these rows."""
    try:
        found = transform(batch)
    except Exception as error:
        raise _raised(transform, batch, error) from error
    if isinstance(found, pa.Table):
        schema = found.schema
        parts = found.combine_chunks().to_batches()
        found = pa.concat_batches(parts) if parts else schema.empty_table().to_batches()
        if not isinstance(found, pa.RecordBatch):
            found = pa.RecordBatch.from_arrays(
                [pa.nulls(0, each.type) for each in schema], schema=schema
            )
    if not isinstance(found, pa.RecordBatch):
        raise refused("transform", type(found).__name__, "it has to return a record batch")
    for name in COLUMNS:
        if (n_found := found.schema.names.count(name)) != 1:
            accepted = f"transform has to return each of the columns once: {', '.join(COLUMNS)}"
            value = "present more than once" if n_found else "missing"
            raise ColumnError(name, value, accepted)
    for name in ("partition", "offset"):
        column = found[name]
        if column.type != batch[name].type or column.null_count:
            accepted = "it names a row, and transform has to return it unchanged"
            raise ColumnError(name, f"{column.type} with {column.null_count} nulls", accepted)
    found = found.select(COLUMNS)
    names = ("partition", "offset")
    if len(found) == len(batch) and all(found[each].equals(batch[each]) for each in names):
        return found, batch
    before, after = (tuple(each[name].to_numpy() for name in names) for each in (batch, found))
    places = _places(before, after)
    if (np.diff(places, prepend=-1) <= 0).any():
        accepted = (
            "it may leave out rows of its batch, but adds, repeats or moves none: partition and "
            "offset of each row show which one it is"
        )
        raise OptionError("transform", f"{len(found)} rows for {len(batch)}", accepted)
    return found, batch.take(pa.array(places))


def _raised(transform: Transform, batch: pa.RecordBatch, error: Exception) -> OptionError:
    """The error for a transform that raises: what it said, where, and for which rows."""
    function = inspect.unwrap(transform)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    frames = traceback.extract_tb(error.__traceback__)
    # Rather the line of the transform than one of a library, or of compiled code without a line.
    own = [each for each in frames if each.filename == file]
    known = own or [each for each in frames if each.line]
    last = [*frames, *known][-1]
    said = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_SHOWN]
    partitions, offsets = batch["partition"], batch["offset"]
    rows = "no rows"
    if len(batch):
        rows = f"partition {partitions[0]} offset {offsets[0]}"
        if len(batch) > 1:
            rows = f"{rows} to partition {partitions[-1]} offset {offsets[-1]}"
    accepted = (
        f"it raised {said} at {last.filename}:{last.lineno}, for the batch with {rows}; nothing "
        "of the clone is visible"
    )
    return OptionError("transform", getattr(function, "__name__", repr(function)), accepted)


def _n_others(column: str, before: pa.Array, after: pa.Array) -> int:
    """The number of rows in which two columns of bytes differ."""
    one, other = (cast_column(column, each, pa.binary()) for each in (before, after))
    if one.equals(other):
        return 0
    differs = pc.fill_null(pc.not_equal(one, other), False)
    return int(pc.or_(differs, pc.xor(one.is_null(), other.is_null())).true_count)


def _places(before: tuple[Int32s, Int64s], after: tuple[Int32s, Int64s]) -> NDArray[np.int64]:
    """Where each row of `after` stands in `before`; -1 if it does not.

    Both have partitions and offsets.
    """
    order = np.lexsort((before[1], before[0]))
    partitions, offsets = before[0][order], before[1][order]
    places = np.full(len(after[0]), -1, np.int64)
    for partition in np.unique(after[0]).tolist():
        rows = np.flatnonzero(after[0] == partition)
        first, end = np.searchsorted(partitions, [partition, partition + 1])
        found = first + np.searchsorted(offsets[first:end], after[1][rows])
        is_there = found < end
        is_there[is_there] = offsets[found[is_there]] == after[1][rows[is_there]]
        places[rows[is_there]] = order[found[is_there]]
    return places
