"""The columns that a query needs of a log, and the expressions that it makes of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from segmentlog.arguments import texts

#: How Arrow prints a column that is given by its number.
_BY_NUMBER = "FieldPath("


class Projection:
    """The filter and the columns of one query.

    `columns`: names, or expressions by name; None for all.  `condition`: rows for which it is true
    are kept; None keeps all.  `needed`: names of the columns to decode, in the order of the
    dataset; at least one.  Raises `pyarrow.ArrowInvalid` if a column does not exist, or a filter
    compares what cannot be compared.
    """

    def __init__(
        self,
        schema: pa.Schema,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None,
        condition: pc.Expression | None,
    ) -> None:
        self._condition = condition
        self._names: list[str] | None = None
        self._expressions: list[pc.Expression] = []
        if columns is None:
            self._names = schema.names
        elif isinstance(columns, Mapping):
            self._expressions = list(columns.values())
        else:
            self._names = list(texts("columns", columns, "give a list of names, or a dict"))
            for name in self._names:
                if name not in schema.names:
                    reason = f"No column {name!r}: columns are {', '.join(schema.names)}"
                    raise pa.ArrowInvalid(reason)
        used = [*self._expressions, *([] if condition is None else [condition])]
        found = _named_in(schema, used) | {*(self._names or ())}
        self.needed = [name for name in schema.names if name in found]
        if not self.needed:  # a column that costs nothing if it can be had, to count rows
            self.needed = ["partition"] if "partition" in schema.names else schema.names[:1]
        self._outputs = list(columns) if isinstance(columns, Mapping) else []
        decoded = pa.schema([schema.field(name) for name in self.needed])
        # Without rows it shows whether the filter can be evaluated, and the resulting schema.
        empty = pa.Table.from_batches([], decoded)
        self.schema: pa.Schema = self._apply(empty).schema

    @property
    def filters(self) -> bool:
        """Whether rows may be left out."""
        return self._condition is not None

    def apply(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of `batch`, which has at least the columns `needed`, that are kept."""
        if self._condition is None and self._names is not None:
            yield batch if self._names == batch.schema.names else batch.select(self._names)
            return
        yield from self._apply(pa.Table.from_batches([batch])).to_batches()

    def _apply(self, table: pa.Table) -> pa.Table:
        steps = [acero.Declaration("table_source", acero.TableSourceNodeOptions(table))]
        if self._condition is not None:
            steps.append(acero.Declaration("filter", acero.FilterNodeOptions(self._condition)))
        if self._names is None:
            options = acero.ProjectNodeOptions(self._expressions, self._outputs)
            steps.append(acero.Declaration("project", options))
        done = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
        return done if self._names is None else done.select(self._names)


def _named_in(schema: pa.Schema, expressions: Sequence[pc.Expression]) -> set[str]:
    """Names of the columns that expressions use.

    Arrow shows no parts of an expression.  But it refuses an expression over a table that lacks
    one of its columns.  If columns are given by their numbers, all are taken as used.
    """
    names: set[str] = set()
    for expression in expressions:
        if _BY_NUMBER in str(expression):
            return set(schema.names)
        _binds(schema, expression)
        for i, name in enumerate(schema.names):
            try:
                _binds(schema.remove(i), expression)
            except pa.ArrowInvalid:
                names.add(name)
    return names


def _binds(schema: pa.Schema, expression: pc.Expression) -> Any:  # noqa: ANN401
    """Evaluate an expression over no rows."""
    source = acero.TableSourceNodeOptions(pa.Table.from_batches([], schema))
    project = acero.ProjectNodeOptions([expression], ["it"])
    steps = [acero.Declaration("table_source", source), acero.Declaration("project", project)]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)
