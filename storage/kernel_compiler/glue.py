# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
"""The code between CPython and the kernels, which is compiled as they are, and its table.

It uses CPython's stable ABI alone (``METH_FASTCALL``, buffers), so one file serves all versions of
Python from 3.11 on.  Addresses are words here.  One table of words describes the module, its
variants and its kernels; the constants below are places in it, in bytes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import global_constant, make_bytearray

from kernel_compiler.instructions import I64, INT, caller, instruction, outside
from kernel_compiler.lower import NO_RESULT, NUMBER, TRUTH, Lowered
from kernel_compiler.platforms import FEATURES, V2, VARIANTS
from segmentlog.native import internal, kernel

__all__ = ["call", "cpu_level", "entries", "extension", "start"]

#: The module, which begins as CPython's ``PyModuleDef``; after it its variants, the best first;
#: after them its kernels.
DIGEST, NOTHING_RUNS, NOTHING_ASKED, N_VARIANTS, N_KERNELS, MODULE_BYTES = range(104, 152, 8)
NEEDED, NAME, ENTRIES, VARIANT_BYTES = range(0, 32, 8)
#: A kernel, which begins as CPython's ``PyMethodDef``; after it its values: an argument, an item
#: of one, or an item of an item.
SLOT, ENTRY, RESULT, N_ARGUMENTS, WRONG_NUMBER, OUTSIDE, N_VALUES = range(32, 88, 8)
KERNEL_BYTES = 88
ARGUMENT, ITEM, ITEM_OF_ITEM, ITEM_BYTES, N_DIMENSIONS, FLAGS, VALUE_BYTES = range(0, 56, 8)
NO_ITEM = -1
INTEGER, ENDS = 0, -1  #: in the place of the bytes of an item
_MOST_VALUES, _MOST_RESULTS = 64, 8

_BUF, _BUF_ITEM_BYTES, _BUF_N_DIMENSIONS, _BUF_SHAPE, _BUF_STRIDES, _BUF_BYTES = (
    0,
    24,
    36,
    48,
    56,
    80,
)  # of ``Py_buffer``
_C_CONTIGUOUS, _WRITABLE = 0x38, 1  # of ``PyBUF_``
_METH_FASTCALL = 0x80
_ABI3 = 3

_INT32 = types.int32


def _c(name, result, *arguments):
    """A function of CPython or of the C library."""
    return types.ExternalFunction(name, result(*arguments))


_bool_from = _c("PyBool_FromLong", INT, INT)
_release_buffer = _c("PyBuffer_Release", types.void, INT)
_error_occurred = _c("PyErr_Occurred", INT)
_set_error = _c("PyErr_SetString", types.void, INT, INT)
_restore_thread = _c("PyEval_RestoreThread", types.void, INT)
_save_thread = _c("PyEval_SaveThread", INT)
_as_integer = _c("PyLong_AsLongLong", INT, INT)
_from_integer = _c("PyLong_FromLongLong", INT, INT)
_add_object = _c("PyModule_AddObject", _INT32, INT, INT, INT)
_add_string = _c("PyModule_AddStringConstant", _INT32, INT, INT, INT)
_create_module = _c("PyModule_Create2", INT, INT, _INT32)
_new_function = _c("PyCFunction_NewEx", INT, INT, INT, INT)
_get_buffer = _c("PyObject_GetBuffer", _INT32, INT, INT, _INT32)
_tuple_item = _c("PyTuple_GetItem", INT, INT, INT)
_new_tuple = _c("PyTuple_New", INT, INT)
_set_item = _c("PyTuple_SetItem", _INT32, INT, INT, INT)
_build_value = _c("Py_BuildValue", INT, INT)
_getenv = _c("getenv", INT, INT)
_compare = _c("strcmp", _INT32, INT, INT)
_import_error, _index_error, _type_error = map(
    outside, ("PyExc_ImportError", "PyExc_IndexError", "PyExc_TypeError")
)
_run = caller(2)


def _loader(bits):
    @instruction(INT, INT)
    def load(builder, address):
        place = builder.inttoptr(address, ir.IntType(bits).as_pointer())
        return builder.sext(builder.load(place), I64)

    return load


def _stack(n_words):
    """Address of words that last as long as a call."""

    @instruction(INT)
    def stack(builder):
        with builder.goto_entry_block():  # numba's `alloca_once` would clear it at each call
            place = builder.alloca(ir.ArrayType(I64, n_words))
        return builder.ptrtoint(place, I64)

    return stack


def _text(text):
    """Address of a C string."""
    data = make_bytearray(text.encode() + b"\0")
    return instruction(INT)(
        lambda builder: builder.ptrtoint(global_constant(builder, "text", data), I64)
    )


_load, _load_32, _load_8 = map(_loader, (64, 32, 8))
_store = instruction(types.void, INT, INT)(
    lambda builder, address, word: builder.store(word, builder.inttoptr(address, I64.as_pointer()))
)
_views = _stack(_MOST_VALUES * _BUF_BYTES // 8)
_words = _stack(_MOST_VALUES * 9)  # numba passes a table as nine words
_results = _stack(_MOST_RESULTS)
_nothing, _digest, _variant = map(_text, ("", "digest", "variant"))
_setting = _text("SEGMENTLOG_KERNELS")
_wrong_kind = _text("an array has another type or number of dimensions")
_mixed_ends = _text("the bounds of some columns have 32 bits, those of others 64")


@kernel
def call(this: int, given: int, n_given: int) -> int:
    """What CPython calls for a kernel: an object, or 0 with an exception."""
    described = _as_integer(this)
    if n_given != _load(described + N_ARGUMENTS):
        _set_error(_type_error(), _load(described + WRONG_NUMBER))
        return 0
    views, words, results = _views(), _words(), _results()
    n_views, ends_bytes, made = 0, 0, 0
    at = words
    value = described + KERNEL_BYTES
    end = value + VALUE_BYTES * _load(described + N_VALUES)
    while value < end:
        owner = _load(given + 8 * _load(value + ARGUMENT))
        for item in range(value + ITEM, value + ITEM_BYTES, 8):
            if owner != 0 and _load(item) != NO_ITEM:
                owner = _tuple_item(owner, _load(item))
        if owner == 0:
            break
        wanted = _load(value + ITEM_BYTES)
        if wanted == INTEGER:
            number = _as_integer(owner)
            if number == -1 and _error_occurred() != 0:
                break
            _store(at, number)
            at += 8
        else:
            view = views + _BUF_BYTES * n_views
            if _get_buffer(owner, view, _load(value + FLAGS)) != 0:
                break
            n_views += 1
            n_dimensions = _load(value + N_DIMENSIONS)
            item_bytes = _load(view + _BUF_ITEM_BYTES)
            is_ends = wanted == ENDS and item_bytes in (4, 8)
            if _load_32(view + _BUF_N_DIMENSIONS) != n_dimensions or not (
                is_ends or item_bytes == wanted
            ):
                _set_error(_type_error(), _wrong_kind())
                break
            if is_ends:
                if ends_bytes not in (0, item_bytes):
                    _set_error(_type_error(), _mixed_ends())
                    break
                ends_bytes = item_bytes
            # What numba passes: two words that kernels do not use, the number of items, …
            _store(at, 0)
            _store(at + 8, 0)
            _store(at + 24, item_bytes)
            _store(at + 32, _load(view + _BUF))
            n_items, at_shape = 1, at + 40
            for axis in range(0, 8 * n_dimensions, 8):
                size = _load(_load(view + _BUF_SHAPE) + axis)
                n_items *= size
                _store(at_shape + axis, size)
                stride = _load(_load(view + _BUF_STRIDES) + axis)
                _store(at_shape + 8 * n_dimensions + axis, stride)
            _store(at + 16, n_items)
            at += 40 + 16 * n_dimensions
        value += VALUE_BYTES
    else:
        # If there are two entries, for both types of `Ends`, the second is for 64 bits.
        entry = _load(_load(described + ENTRY) + 8 * (ends_bytes == 8))
        thread = _save_thread()
        code = _run(entry, words, results)
        _restore_thread(thread)
        if code > 0:
            _set_error(_index_error(), _load(described + OUTSIDE))
        else:
            made = _result(_load(described + RESULT), results)
    for each in range(views, views + _BUF_BYTES * n_views, _BUF_BYTES):
        _release_buffer(each)
    return made


@internal
def _result(kind: int, results: int) -> int:
    """The object of what a kernel has returned."""
    if kind == NO_RESULT:
        return _build_value(_nothing())
    if kind == TRUTH:
        return _bool_from(_load_8(results))
    if kind == NUMBER:
        return _from_integer(_load(results))
    made = _new_tuple(kind)
    if made != 0:
        for i in range(kind):
            _set_item(made, i, _from_integer(_load(results + 8 * i)))
    return made


_has_cpuid = outside("features")  # 0 on other processors: then LLVM leaves out what asks


def _asked(code, constraints, place):
    """One of the words that an instruction returns for the word in ECX and, for a leaf, in EAX."""
    n_results = constraints.count("=")
    arguments = [ir.IntType(32)] * (constraints.count("{") - n_results)
    kind = ir.FunctionType(ir.LiteralStructType([ir.IntType(32)] * n_results), arguments)

    @instruction(INT, INT)
    def ask(builder, leaf):
        values = [builder.trunc(leaf, ir.IntType(32)), ir.IntType(32)(0)][: len(arguments)]
        found = builder.asm(kind, code, constraints, values, True)
        return builder.zext(builder.extract_value(found, place), I64)

    return ask


_CPUID = "={ax},={bx},={cx},={dx},{ax},{cx}"
_eax, _ebx, _ecx = (_asked("cpuid", _CPUID, place) for place in range(3))
_saved_state = _asked("xgetbv", "={ax},={dx},{cx}", 0)

#: Of the features in their order: leaf, whether its bit is in ECX and not in EBX, and the bit.
_PLACES = tuple(FEATURES.values())
_SAVES_STATE, _VECTORS_STATE = 1 << 27, 6


@internal
def cpu_level() -> int:
    """How many of `FEATURES` an x86 processor has, up to the first that it lacks."""
    level = 0
    if _has_cpuid():
        for leaf, is_in_ecx, bit in _PLACES:
            if leaf == 7 and _eax(0) < leaf:
                break
            # The operating system must save the vectors, too.
            if level == V2 and not (
                _ecx(1) & _SAVES_STATE and _saved_state(0) & _VECTORS_STATE == _VECTORS_STATE
            ):
                break
            if not (_ecx(leaf) if is_in_ecx else _ebx(leaf)) >> bit & 1:
                break
            level += 1
    return level


@kernel
def start(module: int) -> int:
    """Make the module, with the kernels that are asked for, or those for this processor."""
    level = cpu_level()
    asked = _getenv(_setting())
    is_any = asked == 0 or _load_8(asked) == 0
    variant = module + MODULE_BYTES
    described = variant + VARIANT_BYTES * _load(module + N_VARIANTS)
    while variant < described:
        if level >= _load(variant + NEEDED) and (
            is_any or _compare(asked, _load(variant + NAME)) == 0
        ):
            break
        variant += VARIANT_BYTES
    else:
        message = _load(module + (NOTHING_RUNS if is_any else NOTHING_ASKED))
        _set_error(_import_error(), message)
        return 0
    made = _create_module(module, _ABI3)
    if made != 0:
        _add_string(made, _digest(), _load(module + DIGEST))
        _add_string(made, _variant(), _load(variant + NAME))
        for _ in range(_load(module + N_KERNELS)):
            entry = _load(variant + ENTRIES) + 8 * _load(described + SLOT)
            _store(described + ENTRY, entry)
            function = _new_function(described, _from_integer(described), 0)
            _add_object(made, _load(described), function)
            described += KERNEL_BYTES + VALUE_BYTES * _load(described + N_VALUES)
    return made


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


def extension(
    lowered: Sequence[Lowered],
    optimized: llvm.ModuleRef,
    variants: Sequence[str],
    digest: str,
    names: Sequence[str],
) -> str:
    """The table of the module ``_compiled``, and the functions that CPython calls with it.

    The kernels are in the order of the variants' entries, and `optimized` has the code of one
    variant.  `names` are the symbols of `call` and `start`.
    """
    lines = [f"@features = constant i64 {VARIANTS[variants[-1]].needed}"]

    def text(text: str) -> str:
        data = (*text.encode(), 0)
        shown = "".join(f"\\{byte:02x}" for byte in data)
        lines.append(f'@text.{len(lines)} = internal constant [{len(data)} x i8] c"{shown}"')
        return f"@text.{len(lines) - 1}"

    shown = ", ".join(variants)
    slots = {each.name: slot for slot, each in reversed([*enumerate(lowered)])}
    table: list[int | str] = [
        1,
        *[0] * 4,
        text("segmentlog.format.kernels._compiled"),
        0,
        -1,
        *[0] * 5,
        text(digest),
        text(f"this processor runs none of its kernels: {shown}"),
        text(f"this processor runs no kernels of this name among its {shown}"),
        len(variants),
        len(slots),
    ]
    for variant in variants:
        lines.append(f'@"kernels.{variant}" = external global ptr')
        table += [VARIANTS[variant].needed, text(variant), f'@"kernels.{variant}"']
    of_64_bits = {each.name: each for each in lowered}  # the second entry, if there are two
    for name, slot in slots.items():
        kernel = lowered[slot]
        given = optimized.get_function(kernel.symbol).arguments
        # Of each array, numba passes two pointers that kernels do not use, and that of the data.
        data = iter([each for each in given if str(each.type) == "ptr"][2:][2::3])
        values: list[int] = []
        for path, kind, is_ends in _values(kernel.arguments, of_64_bits[name].arguments):
            values += [*path, *[NO_ITEM] * (3 - len(path))]
            if kind == INT:
                values += [INTEGER, 0, 0]
                continue
            is_only_read = {b"readonly", b"readnone"} & set(next(data).attributes)
            flags = _C_CONTIGUOUS | (0 if is_only_read else _WRITABLE)
            values += [ENDS if is_ends else kind.dtype.bitwidth // 8, kind.ndim, flags]
        n_values = 8 * len(values) // VALUE_BYTES
        if n_values > _MOST_VALUES:
            message = f"{name} takes {n_values} values, more than {_MOST_VALUES}"
            raise ValueError(message)
        n_arguments = len(kernel.arguments)
        table += [
            text(name),
            "@call",
            _METH_FASTCALL,
            0,
            slot,
            0,
            kernel.result,
            n_arguments,
            text(f"{name} takes {n_arguments} arguments"),
            text(f"{name}: an index is outside its array"),
            n_values,
            *values,
        ]
    words = [
        f"i64 {each}" if isinstance(each, int) else f"i64 ptrtoint (ptr {each} to i64)"
        for each in table
    ]
    lines.append(f"@module = internal global [{len(words)} x i64] [{', '.join(words)}]")
    module = "i64 ptrtoint (ptr @module to i64)"
    for head, symbol, arguments in (
        (
            "internal i64 @call(i64 %this, i64 %given, i64 %n)",
            *names[:1],
            ["i64 %this", "i64 %given", "i64 %n"],
        ),
        ("i64 @PyInit__compiled()", *names[1:], [module]),
    ):
        kinds = ", ".join(["ptr", "ptr", *["i64"] * len(arguments)])
        lines += [
            f'declare i32 @"{symbol}"({kinds})',
            f"define {head} {{",
            "%result = alloca i64",
            "%error = alloca ptr",
            f'call i32 @"{symbol}"({", ".join(["ptr %result", "ptr %error", *arguments])})',
            "%made = load i64, ptr %result",
            "ret i64 %made",
            "}",
        ]
    return "\n".join(lines)


def _values(
    narrow: Any, wide: Any, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Any, bool]]:
    """The place of each value, with items of tuples; its type, and whether it is an `Ends`."""
    for number, (kind, other) in enumerate(zip(narrow, wide, strict=True)):
        if isinstance(kind, types.BaseTuple):  # type: ignore[attr-defined]
            yield from _values(kind, other, (*path, number))
        else:
            yield (*path, number), kind, kind != other
