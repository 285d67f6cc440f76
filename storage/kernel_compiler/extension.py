"""The LLVM code that leads from CPython to `glue`, and from there to the kernels of a variant."""

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import binding as llvm
from numba.core import types as nb

from kernel_compiler import glue
from kernel_compiler.lower import Lowered
from kernel_compiler.platforms import VARIANTS

__all__ = ["entries", "extension", "written_arrays"]

_C_CONTIGUOUS, _WRITABLE = 0x38, 1  # of ``PyBUF_``
_METH_FASTCALL = 0x80


def entries(kernels: llvm.ModuleRef, lowered: Sequence[Lowered], variant: str) -> str:
    """A function of words and results for each kernel, and the table of these functions."""
    lines = [f"@features = constant i64 {VARIANTS[variant].needed}"]
    for slot, each in enumerate(lowered):
        kinds = [str(given.type) for given in kernels.get_function(each.symbol).arguments][2:]
        passed = "".join(f", {kind} %value.{i}" for i, kind in enumerate(kinds))
        lines += [
            f'declare i32 @"{each.symbol}"({", ".join(["ptr", "ptr", *kinds])})',
            f"define internal i64 @entry.{slot}(ptr %words, ptr %results) {{",
            "%error = alloca ptr",
        ]
        for i, kind in enumerate(kinds):
            lines.append(f"%at.{i} = getelementptr i64, ptr %words, i64 {i}")
            lines.append(f"%value.{i} = load {kind}, ptr %at.{i}")
        lines += [
            # Inlined, it would no longer say to which arrays it writes.
            f'%code = call i32 @"{each.symbol}"(ptr %results, ptr %error{passed}) noinline',
            "%word = sext i32 %code to i64",
            "ret i64 %word",
            "}",
        ]
    addresses = ", ".join(f"ptr @entry.{slot}" for slot in range(len(lowered)))
    table = f'@"kernels.{variant}" = constant [{len(lowered)} x ptr] [{addresses}]'
    return "\n".join([*lines, table])


def written_arrays(function: llvm.ValueRef) -> frozenset[int]:
    """Numbers of the arrays whose data LLVM has not found to be only read."""
    pointers = [each for each in function.arguments if str(each.type) == "ptr"][2:]
    return frozenset(
        number
        for number, each in enumerate(pointers[2::3])  # of each array: two unused, and the data
        if not {b"readonly", b"readnone"} & set(each.attributes)
    )


class _Extension:
    """The code of a module, line by line."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = [*lines]

    def text(self, text: str) -> str:
        """A C string, as a pointer."""
        data, pointer = (*text.encode(), 0), f"ptr @text.{len(self.lines)}"
        shown = "".join(f"\\{byte:02x}" for byte in data)
        self.constant(pointer, f"[{len(data)} x i8]", f'c"{shown}"')
        return pointer

    def constant(self, pointer: str, kind: str, value: str) -> None:
        """Define what a pointer leads to."""
        self.lines.append(f"{pointer.removeprefix('ptr ')} = internal global {kind} {value}")

    def words(self, pointer: str, words: Sequence[int | str]) -> None:
        """A table of numbers, and of pointers."""
        listed = (
            f"i64 {each}" if isinstance(each, int) else f"i64 ptrtoint ({each} to i64)"
            for each in words
        )
        self.constant(pointer, f"[{len(words)} x i64]", f"[{', '.join(listed)}]")

    def function(self, head: str, called: str, *arguments: str) -> None:
        """A C function that calls one that numba has lowered, which returns a word."""
        self.lines += [
            f"define {head} {{",
            "%result = alloca i64",
            "%error = alloca ptr",
            f'call i32 @"{called}"({", ".join(["ptr %result", "ptr %error", *arguments])})',
            "%made = load i64, ptr %result",
            "ret i64 %made",
            "}",
        ]


def extension(
    lowered: Sequence[Lowered], written: Sequence[frozenset[int]], variants: Sequence[str],
    digest: str, call: str, start: str,
) -> str:  # fmt: skip
    """The module ``_compiled``, with the digest of the sources.

    The kernels, and the arrays that each writes to, are in the order of the variants' tables;
    `call` and `start` are the symbols of these functions of `glue`.
    """
    made = _Extension([
        f'declare i32 @"{call}"(ptr, ptr, i64, i64, i64)',
        f'declare i32 @"{start}"(ptr, ptr, i64)',
        f"@features = constant i64 {VARIANTS[variants[-1]].needed}",
        "@chosen = internal global i64 0",
        *(f'@"kernels.{each}" = external global ptr' for each in variants),
    ])  # fmt: skip
    names = [each.name for each in lowered]
    methods = []
    for name in dict.fromkeys(names):
        slot = names.index(name)
        kernel = lowered[slot]
        # If there are two, for both types of `Ends`, the second is for 64 bits.
        wide = lowered[slot + names.count(name) - 1]
        values: list[int] = []
        n_values = n_arrays = 0
        for path, kind, is_ends in _values(kernel.arguments, wide.arguments):
            values += [*path, *[glue.NO_ITEM] * (3 - len(path))]
            n_values += 1
            if kind == nb.int64:
                values += [glue.INTEGER, 0, 0]
                continue
            item_bytes = glue.ENDS if is_ends else kind.dtype.bitwidth // 8
            flags = _C_CONTIGUOUS | (_WRITABLE if n_arrays in written[slot] else 0)
            values += [item_bytes, kind.ndim, flags]
            n_arrays += 1
        if n_values > glue.MOST_VALUES:
            message = f"{name} takes {n_values} values, more than {glue.MOST_VALUES}"
            raise ValueError(message)
        n_arguments = len(kernel.arguments)
        made.words(f'ptr @"kernel.{name}"', [
            "ptr @chosen", slot, kernel.result, n_arguments,
            made.text(f"{name} takes {n_arguments} arguments"),
            made.text(f"{name}: an index is outside its array"),
            n_values, *values,
        ])  # fmt: skip
        made.function(
            f'internal i64 @"call.{name}"(i64 %self, i64 %given, i64 %n_given)', call,
            f'i64 ptrtoint (ptr @"kernel.{name}" to i64)', "i64 %given", "i64 %n_given",
        )  # fmt: skip
        methods += [made.text(name), f'ptr @"call.{name}"', f"i64 {_METH_FASTCALL}", "ptr null"]
    made.constant("ptr @methods", *_struct([*methods, *["i64 0"] * 4]))
    made.constant("ptr @definition", *_struct([
        "i64 1", "i64 0", "i64 0", "i64 0", "i64 0",  # what CPython fills
        made.text("segmentlog.format.kernels._compiled"), "ptr null", "i64 -1", "ptr @methods",
        *["i64 0"] * 4,
    ]))  # fmt: skip
    shown = ", ".join(variants)
    made.words("ptr @module", [
        "ptr @chosen", "ptr @definition", made.text(digest),
        made.text(f"this processor runs none of its kernels: {shown}"),
        made.text(f"this processor runs no kernels of this name among its {shown}"),
        len(variants),
        *(word for each in variants
          for word in (VARIANTS[each].needed, made.text(each), f'ptr @"kernels.{each}"')),
    ])  # fmt: skip
    made.function("i64 @PyInit__compiled()", start, "i64 ptrtoint (ptr @module to i64)")
    return "\n".join(made.lines)


def _struct(fields: Sequence[str]) -> tuple[str, str]:
    """Type and value of a structure."""
    return f"{{{', '.join(each.split()[0] for each in fields)}}}", f"{{{', '.join(fields)}}}"


def _values(
    narrow: Any, wide: Any, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Any, bool]]:
    """The place of each value, with items of tuples; its type, and whether it is an `Ends`."""
    for number, (kind, other) in enumerate(zip(narrow, wide, strict=True)):
        if isinstance(kind, nb.BaseTuple):  # type: ignore[attr-defined]
            yield from _values(kind, other, (*path, number))
        else:
            yield (*path, number), kind, kind != other
