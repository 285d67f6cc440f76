# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"
"""The code between CPython and the kernels, which is compiled as they are.

It uses CPython's stable ABI alone (``METH_FASTCALL``, buffers), so one file serves all versions of
Python from 3.11 on.  Addresses are words here.  `extension` writes the tables of words that
describe the module and each kernel; the constants below are places in them, in bytes.
"""

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import global_constant, make_bytearray

from kernel_compiler.instructions import I64, INT, caller, instruction, outside
from kernel_compiler.lower import NO_RESULT, NUMBER, TRUTH
from kernel_compiler.platforms import V2, V3, VECTORS
from segmentlog.native import internal, kernel

__all__ = ["call", "cpu_level", "start"]

#: The module, and after it each of its variants, the best first.
CHOSEN, DEFINITION, DIGEST, NOTHING_RUNS, NOTHING_ASKED, N_VARIANTS, MODULE_BYTES = range(0, 56, 8)
NEEDED, NAME, KERNELS, VARIANT_BYTES = range(0, 32, 8)
#: A kernel, and after it each of its values: an argument, an item of one, or an item of an item.
TABLE, SLOT, RESULT, N_ARGUMENTS, WRONG_NUMBER, OUTSIDE, N_VALUES, KERNEL_BYTES = range(0, 64, 8)
ARGUMENT, ITEM, ITEM_OF_ITEM, ITEM_BYTES, N_DIMENSIONS, FLAGS, VALUE_BYTES = range(0, 56, 8)
NO_ITEM = -1
INTEGER, ENDS = 0, -1  #: in the place of the bytes of an item
MOST_VALUES, MOST_RESULTS = 64, 8

_BUF, _BUF_ITEM_BYTES, _BUF_N_DIMENSIONS, _BUF_SHAPE, _BUF_STRIDES, _BUF_BYTES = (
    0, 24, 36, 48, 56, 80,
)  # fmt: skip  # of ``Py_buffer``
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
_add_string = _c("PyModule_AddStringConstant", _INT32, INT, INT, INT)
_create_module = _c("PyModule_Create2", INT, INT, _INT32)
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
_views = _stack(MOST_VALUES * _BUF_BYTES // 8)
_words = _stack(MOST_VALUES * 9)  # numba passes a table as nine words
_results = _stack(MOST_RESULTS)
_nothing, _digest, _variant = map(_text, ("", "digest", "variant"))
_setting = _text("SEGMENTLOG_KERNELS")
_wrong_kind = _text("an array has another type or number of dimensions")
_mixed_ends = _text("the bounds of some columns have 32 bits, those of others 64")


@kernel
def call(described: int, given: int, n_given: int) -> int:
    """What CPython calls for a kernel: an object, or 0 with an exception."""
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
        slot = _load(described + SLOT) + (ends_bytes == 8)
        entry = _load(_load(_load(described + TABLE)) + 8 * slot)
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

_V2_ECX = sum(1 << bit for bit in (0, 1, 9, 13, 19, 20, 23))  # of leaf 1
_V3_ECX = sum(1 << bit for bit in (12, 22, 27, 28, 29))  # of leaf 1
_V3_EBX = sum(1 << bit for bit in (3, 5, 8))  # of leaf 7
_VECTORS_ECX = 1 << 10  # of leaf 7
_EXTENDED, _V3_EXTENDED_ECX = 0x80000001, 1 << 5
_YMM_STATE = 6


@internal
def cpu_level() -> int:
    """What an x86 processor has, as bits."""
    if not _has_cpuid() or _ecx(1) & _V2_ECX != _V2_ECX:
        return 0
    has_v3 = _eax(0) >= 7 and _ecx(1) & _V3_ECX == _V3_ECX and _ebx(7) & _V3_EBX == _V3_EBX
    # The operating system must save the vectors, too.
    if not (
        has_v3
        and _ecx(_EXTENDED) & _V3_EXTENDED_ECX
        and _saved_state(0) & _YMM_STATE == _YMM_STATE
    ):
        return V2
    return V2 | V3 | VECTORS if _ecx(7) & _VECTORS_ECX else V2 | V3


@kernel
def start(module: int) -> int:
    """Make the module, with the kernels that are asked for, or those for this processor."""
    level = cpu_level()
    asked = _getenv(_setting())
    is_any = asked == 0 or _load_8(asked) == 0
    variant = module + MODULE_BYTES
    end = variant + VARIANT_BYTES * _load(module + N_VARIANTS)
    while variant < end:
        needed = _load(variant + NEEDED)
        if level & needed == needed and (is_any or _compare(asked, _load(variant + NAME)) == 0):
            break
        variant += VARIANT_BYTES
    else:
        message = _load(module + (NOTHING_RUNS if is_any else NOTHING_ASKED))
        _set_error(_import_error(), message)
        return 0
    _store(_load(module + CHOSEN), _load(variant + KERNELS))
    made = _create_module(_load(module + DEFINITION), _ABI3)
    if made != 0:
        _add_string(made, _digest(), _load(module + DIGEST))
        _add_string(made, _variant(), _load(variant + NAME))
    return made
