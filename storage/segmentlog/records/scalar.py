"""Arrow's scalars from memory.

`pyarrow.scalar` and `pyarrow.array` import pandas if it is installed.  That import took 0.2 s of
the half second before a process's first row.
"""

import numpy as np
import pyarrow as pa

__all__ = ["scalar"]


def scalar(value: int | str, kind: pa.DataType) -> pa.Scalar:
    """A scalar of an integer type, of timestamps (in their unit), or of strings.

    Raises
    ------
    OverflowError
        If the type cannot hold the number.
    """
    if isinstance(value, str):
        text = value.encode()
        ends = np.array([0, len(text)], np.int32)
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(ends), pa.py_buffer(text)])[0]
    number = value.to_bytes(kind.bit_width // 8, "little", signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number)])[0]
