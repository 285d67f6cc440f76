"""The bytes of values where they lie in a column, without a copy of each."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from segmentlog.format.kernels.memory import Bytes, Int32s, Int64s
from segmentlog.format.records.columns import binary_views


@dataclass(frozen=True)
class Payloads:
    """Values without their frames: each is ``data[begin:end]``.

    `begins`, `ends`: shape (n_values,).  The begin of a value that is lost is -1.
    """

    data: Bytes
    begins: Int32s
    ends: Int32s

    @classmethod
    def of(cls, values: pa.Array, n_left_out: int | Int32s = 0) -> Self:
        """The values of a binary column without their first bytes; null is lost."""
        data, bounds = binary_views(values)
        begins: Int32s = bounds[:-1] + n_left_out
        if values.null_count:
            begins[~values.is_valid().to_numpy(zero_copy_only=False)] = -1
        return cls(data, begins, bounds[1:])

    def __len__(self) -> int:
        return len(self.begins)

    def only(self, rows: slice | Int64s | NDArray[np.bool_]) -> "Payloads":
        """Some of the values."""
        return Payloads(self.data, self.begins[rows], self.ends[rows])

    def to_list(self) -> list[bytes]:
        """The values, of which none is lost, as objects."""
        if not len(self):
            return []
        # A slice of a column may share the bytes of all of it.
        first = int(self.begins.min())
        data = self.data[first : int(self.ends.max())].tobytes()
        begins, ends = (self.begins - first).tolist(), (self.ends - first).tolist()
        return [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
