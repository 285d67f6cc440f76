# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The code between CPython and the kernels: one function for each kernel, and the module's start.

It is LLVM code and no C, so a build needs only a linker.  It uses CPython's stable ABI alone
(``METH_FASTCALL``, buffers), which is why one file serves all versions of Python from 3.11 on.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core.cgutils import for_range

from kernel_compiler.signatures import Lowered, arrays
from kernel_compiler.variants import V2, V3, VARIANTS, VECTORS

__all__ = ["cpu_level", "extension"]

_I1, _I8, _I32, _I64 = ir.IntType(1), ir.IntType(8), ir.IntType(32), ir.IntType(64)
_PTR = _I8.as_pointer()
#: ``Py_buffer``: buf, obj, len, itemsize, readonly, ndim, format, shape, strides, suboffsets,
#: internal.
_VIEW = ir.LiteralStructType(
    [_PTR, _PTR, _I64, _I64, _I32, _I32, _PTR, _I64.as_pointer(), _I64.as_pointer(), _PTR, _PTR]
)
_BUF, _ITEMSIZE, _NDIM, _SHAPE, _STRIDES = 0, 3, 5, 7, 8
_PYBUF_C_CONTIGUOUS, _PYBUF_WRITABLE = 0x38, 1
_METH_FASTCALL, _ABI3 = 0x80, 3
_ANY_SIZE = -1  # of an item of `Ends`

#: Functions of CPython and of the C library: result, arguments.
_API = {
    "PyBool_FromLong": (_PTR, [_I64]),
    "PyBuffer_Release": (ir.VoidType(), [_PTR]),
    "PyErr_Occurred": (_PTR, []),
    "PyErr_SetString": (ir.VoidType(), [_PTR, _PTR]),
    "PyEval_RestoreThread": (ir.VoidType(), [_PTR]),
    "PyEval_SaveThread": (_PTR, []),
    "PyLong_AsLongLong": (_I64, [_PTR]),
    "PyLong_FromLongLong": (_PTR, [_I64]),
    "PyModule_AddStringConstant": (_I32, [_PTR, _PTR, _PTR]),
    "PyModule_Create2": (_PTR, [_PTR, _I32]),
    "PyObject_GetBuffer": (_I32, [_PTR, _PTR, _I32]),
    "PyTuple_GetItem": (_PTR, [_PTR, _I64]),
    "PyTuple_New": (_PTR, [_I64]),
    "PyTuple_SetItem": (_I32, [_PTR, _I64, _PTR]),
    "Py_BuildValue": (_PTR, [_PTR]),
    "getenv": (_PTR, [_PTR]),
    "strcmp": (_I32, [_PTR, _PTR]),
}


class _Module:
    """An LLVM module with what all its functions need."""

    def __init__(self, name: str, triple: str, layout: str) -> None:
        self.ir = ir.Module(name)
        self.ir.triple, self.ir.data_layout = triple, layout
        self.api = {
            each: ir.Function(
                self.ir, ir.FunctionType(*kind, var_arg=each == "Py_BuildValue"), each
            )
            for each, kind in _API.items()
        }
        self._texts: dict[str, Any] = {}

    def text(self, text: str):
        """Pointer to a C string."""
        if text not in self._texts:
            data = ir.Constant(
                ir.ArrayType(_I8, len(text.encode()) + 1), bytearray(text.encode() + b"\0")
            )
            self._texts[text] = self.data(f"text.{len(self._texts)}", data, is_constant=True)
        return self._texts[text]

    def data(self, name: str, value, *, is_constant: bool = False):
        """An internal variable; a pointer to it."""
        made = ir.GlobalVariable(self.ir, value.type, name)
        made.initializer, made.linkage, made.global_constant = value, "internal", is_constant
        return made.bitcast(_PTR)

    def outside(self, name: str):
        """Pointer to a variable of another object."""
        return ir.GlobalVariable(self.ir, _PTR, name)

    def function(self, name: str, kind, *, linkage: str = "internal"):
        """A function, and a builder at its start."""
        made = ir.Function(self.ir, kind, name)
        made.linkage = linkage
        return made, ir.IRBuilder(made.append_basic_block("start"))

    def raise_error(self, builder, kind: str, text) -> None:
        """Set an exception of CPython, with a text or a pointer to one; the caller returns."""
        try:
            place = self.ir.get_global(kind)
        except KeyError:
            place = self.outside(kind)
        pointer = self.text(text) if isinstance(text, str) else text
        builder.call(self.api["PyErr_SetString"], [builder.load(place), pointer])


def _view(builder, views, number: int, field: int):
    """A field of one of the buffers of a call."""
    place = builder.gep(views, [_I32(0), _I32(number), _I32(field)])
    return builder.load(place)


def _take(module: _Module):
    """``take(object, view, flags, ndim, itemsize)``: fill a view; false with an exception."""
    kind = ir.FunctionType(_I1, [_PTR, _VIEW.as_pointer(), _I32, _I32, _I64])
    function, builder = module.function("take", kind)
    owner, view, flags, n_dimensions, size = function.args
    got = builder.call(
        module.api["PyObject_GetBuffer"], [owner, builder.bitcast(view, _PTR), flags]
    )
    with builder.if_then(builder.icmp_signed("!=", got, _I32(0))):
        builder.ret(_I1(0))
    found = [builder.load(builder.gep(view, [_I32(0), _I32(each)])) for each in (_NDIM, _ITEMSIZE)]
    is_item = builder.icmp_signed("==", found[1], size)
    of_ends = [builder.icmp_signed("==", found[1], _I64(each)) for each in (4, 8)]
    is_ends = builder.and_(builder.icmp_signed("==", size, _I64(_ANY_SIZE)), builder.or_(*of_ends))
    fits = builder.and_(
        builder.icmp_signed("==", found[0], n_dimensions), builder.or_(is_item, is_ends)
    )
    with builder.if_then(fits):
        builder.ret(_I1(1))
    builder.call(module.api["PyBuffer_Release"], [builder.bitcast(view, _PTR)])
    module.raise_error(
        builder, "PyExc_TypeError", "an array has another type or number of dimensions"
    )
    builder.ret(_I1(0))
    return function


def _release(module: _Module):
    """``release(views, n)``."""
    kind = ir.FunctionType(ir.VoidType(), [_VIEW.as_pointer(), _I64])
    function, builder = module.function("release", kind)
    views, n = function.args
    with for_range(builder, n) as loop:
        view = builder.bitcast(builder.gep(views, [loop.index]), _PTR)
        builder.call(module.api["PyBuffer_Release"], [view])
    builder.ret_void()
    return function


class _Entry:
    """The function that CPython calls for one kernel.

    `kernels` has the kernel for each type of `Ends`, `slots` has their places in the table.
    """

    def __init__(self, module: _Module, helpers, kernels: Sequence[Lowered], table, slots):
        self.module, (self.take, self.release) = module, helpers
        self.written = frozenset().union(*(each.written for each in kernels))
        self.n_views = sum(1 for _ in arrays(kernels[0].arguments))
        ways = [arrays(kernels[at].arguments) for at in (0, -1)]
        self.is_ends = [narrow != wide for narrow, wide in zip(*ways, strict=True)]
        kind = ir.FunctionType(_PTR, [_PTR, _PTR.as_pointer(), _I64])
        self.function, self.builder = module.function(f"call.{kernels[0].name}", kind)
        builder, arguments = self.builder, kernels[0].arguments
        self.views = builder.alloca(ir.ArrayType(_VIEW, max(self.n_views, 1)))
        result = builder.alloca(ir.ArrayType(_I64, 8))
        error = builder.alloca(_PTR)
        self.taken = 0
        n_given = self.function.args[2]
        with builder.if_then(builder.icmp_signed("!=", n_given, _I64(len(arguments)))):
            text = f"{kernels[0].name} takes {len(arguments)} arguments"
            module.raise_error(builder, "PyExc_TypeError", text)
            builder.ret(_PTR(None))
        values: list[Any] = []
        for i, each in enumerate(arguments):
            given = builder.load(builder.gep(self.function.args[1], [_I64(i)]))
            values += self._value(given, each)
        codes = builder.alloca(_I32)
        if len(kernels) == 1:
            self._call(values, result, error, codes, table, slots[0])
        else:
            size = _view(builder, self.views, self.is_ends.index(True), _ITEMSIZE)
            for i, is_ends in enumerate(self.is_ends):
                if is_ends:
                    self._unless(
                        builder.icmp_signed("==", _view(builder, self.views, i, _ITEMSIZE), size),
                        "the bounds of some columns have 32 bits, those of others 64",
                    )
            with builder.if_else(builder.icmp_signed("==", size, _I64(4))) as (narrow, wide):
                with narrow:
                    self._call(values, result, error, codes, table, slots[0])
                with wide:
                    self._call(values, result, error, codes, table, slots[1])
        builder.call(self.release, [self._first_view(), _I64(self.n_views)])
        with builder.if_then(builder.icmp_signed(">", builder.load(codes), _I32(0))):
            module.raise_error(
                builder, "PyExc_IndexError", f"{kernels[0].name}: an index is outside its array"
            )
            builder.ret(_PTR(None))
        builder.ret(self._result(kernels[0].result, result))

    def _first_view(self):
        return self.builder.gep(self.views, [_I32(0), _I32(0)])

    def _give_up(self):
        """Return with the exception that is set."""
        self.builder.call(self.release, [self._first_view(), _I64(self.taken)])
        self.builder.ret(_PTR(None))

    def _unless(self, holds, text: str):
        with self.builder.if_then(self.builder.not_(holds)):
            self.module.raise_error(self.builder, "PyExc_TypeError", text)
            self._give_up()

    def _value(self, given, kind) -> list[Any]:
        """What the kernel takes for one argument, as numba passes it."""
        builder, api = self.builder, self.module.api
        if kind is int:
            value = builder.call(api["PyLong_AsLongLong"], [given])
            with builder.if_then(builder.icmp_signed("==", value, _I64(-1))):
                failed = builder.call(api["PyErr_Occurred"], [])
                with builder.if_then(builder.icmp_unsigned("!=", failed, _PTR(None))):
                    self._give_up()
            return [value]
        if isinstance(kind, list):
            values = []
            for i, each in enumerate(kind):
                item = builder.call(api["PyTuple_GetItem"], [given, _I64(i)])
                with builder.if_then(builder.icmp_unsigned("==", item, _PTR(None))):
                    self._give_up()
                values += self._value(item, each)
            return values
        number = self.taken
        flags = _PYBUF_C_CONTIGUOUS | (_PYBUF_WRITABLE if number in self.written else 0)
        size = _ANY_SIZE if self.is_ends[number] else kind.itemsize
        view = builder.gep(self.views, [_I32(0), _I32(number)])
        done = builder.call(
            self.take, [given, view, _I32(flags), _I32(kind.n_dimensions), _I64(size)]
        )
        with builder.if_then(builder.not_(done)):
            self._give_up()
        self.taken += 1
        shape, strides = (_view(builder, self.views, number, each) for each in (_SHAPE, _STRIDES))
        sizes = [
            [builder.load(builder.gep(each, [_I64(i)])) for i in range(kind.n_dimensions)]
            for each in (shape, strides)
        ]
        n_items = sizes[0][0] if kind.n_dimensions == 1 else builder.mul(*sizes[0])
        data = _view(builder, self.views, number, _BUF)
        itemsize = _view(builder, self.views, number, _ITEMSIZE)
        return [_PTR(None), _PTR(None), n_items, itemsize, data, *sizes[0], *sizes[1]]

    def _call(self, values, result, error, codes, table, slot: int):
        builder, api = self.builder, self.module.api
        kind = ir.FunctionType(_I32, [_PTR, _PTR, *(each.type for each in values)])
        address = builder.load(builder.gep(builder.load(table), [_I64(slot)]))
        thread = builder.call(api["PyEval_SaveThread"], [])
        code = builder.call(
            builder.bitcast(address, kind.as_pointer()),
            [builder.bitcast(result, _PTR), builder.bitcast(error, _PTR), *values],
        )
        builder.call(api["PyEval_RestoreThread"], [thread])
        builder.store(code, codes)

    def _result(self, kind, result):
        """The Python object of what the kernel has returned."""
        builder, api = self.builder, self.module.api
        word = builder.bitcast(result, _I64.as_pointer())
        if kind is None:
            return builder.call(api["Py_BuildValue"], [self.module.text("")])
        if kind is bool:
            byte = builder.load(builder.bitcast(result, _PTR))
            return builder.call(api["PyBool_FromLong"], [builder.zext(byte, _I64)])
        if kind is int:
            return builder.call(api["PyLong_FromLongLong"], [builder.load(word)])
        made = builder.call(api["PyTuple_New"], [_I64(len(kind))])
        with builder.if_then(builder.icmp_unsigned("!=", made, _PTR(None))):
            for i in range(len(kind)):
                item = builder.call(
                    api["PyLong_FromLongLong"], [builder.load(builder.gep(word, [_I64(i)]))]
                )
                builder.call(api["PyTuple_SetItem"], [made, _I64(i), item])
        return made


def extension(
    lowered: Sequence[Lowered], variants: Sequence[str], digest: str, triple: str, layout: str
) -> str:
    """LLVM code of the module ``_compiled``.

    Parameters
    ----------
    lowered : the kernels, in the order of the tables of their addresses.
    variants : of which there are objects, the best first.
    digest : of the sources.
    """
    module = _Module("segmentlog", triple, layout)
    table = ir.GlobalVariable(module.ir, _PTR.as_pointer(), "table")
    table.initializer, table.linkage = ir.Constant(table.value_type, None), "internal"
    helpers = _take(module), _release(module)
    by_name: dict[str, list[int]] = {}
    for slot, each in enumerate(lowered):
        by_name.setdefault(each.name, []).append(slot)
    method = ir.LiteralStructType([_PTR, _PTR, _I32, _PTR])
    methods = []
    for name, slots in by_name.items():
        kernels = [lowered[slot] for slot in slots]
        made = _Entry(module, helpers, kernels, table, slots)
        methods.append(
            ir.Constant(
                method,
                [module.text(name), made.function.bitcast(_PTR), _I32(_METH_FASTCALL), _PTR(None)],
            )
        )
    methods.append(ir.Constant(method, [_PTR(None), _PTR(None), _I32(0), _PTR(None)]))
    listed = module.data("methods", ir.Constant(ir.ArrayType(method, len(methods)), methods))
    # PyModuleDef: refcount, type, m_init, m_index, m_copy, name, doc, size, methods, slots,
    # traverse, clear, free.
    fields = [
        _I64(1),
        _PTR(None),
        _PTR(None),
        _I64(0),
        _PTR(None),
        module.text("segmentlog.format.kernels._compiled"),
        _PTR(None),
        _I64(-1),
        listed,
        *[_PTR(None)] * 4,
    ]
    definition = module.data("definition", ir.Constant.literal_struct(fields))
    _start(module, table, definition, variants, digest)
    return str(module.ir)


def _start(module: _Module, table, definition, variants, digest: str) -> None:
    """``PyInit__compiled``: choose the kernels that are asked for, or those for this processor."""
    _, builder = module.function("PyInit__compiled", ir.FunctionType(_PTR, []), linkage="external")
    level = builder.call(cpu_level(module), []) if VARIANTS[variants[0]].needed else _I64(0)
    chosen = builder.alloca(_PTR)
    builder.store(_PTR(None), chosen)
    found = builder.call(module.api["getenv"], [module.text("SEGMENTLOG_KERNELS")])
    is_unset = builder.icmp_unsigned("==", found, _PTR(None))
    asked = builder.select(is_unset, module.text(""), found)
    is_any = builder.icmp_unsigned("==", builder.load(asked), _I8(0))
    for name in reversed(variants):
        needed = VARIANTS[name].needed
        fits = builder.icmp_unsigned("==", builder.and_(level, _I64(needed)), _I64(needed))
        same = builder.call(module.api["strcmp"], [asked, module.text(name)])
        is_asked = builder.or_(is_any, builder.icmp_unsigned("==", same, _I32(0)))
        with builder.if_then(builder.and_(fits, is_asked)):
            addresses = ir.GlobalVariable(module.ir, _PTR, f"kernels.{name}")
            builder.store(addresses.bitcast(_PTR.as_pointer()), table)
            builder.store(module.text(name), chosen)
    with builder.if_then(builder.icmp_unsigned("==", builder.load(chosen), _PTR(None))):
        names = ", ".join(variants)
        text = builder.select(
            is_any,
            module.text(f"this processor runs none of its kernels: {names}"),
            module.text(f"this processor runs no kernels of this name among its {names}"),
        )
        module.raise_error(builder, "PyExc_ImportError", text)
        builder.ret(_PTR(None))
    made = builder.call(module.api["PyModule_Create2"], [definition, _I32(_ABI3)])
    with builder.if_then(builder.icmp_unsigned("!=", made, _PTR(None))):
        add = module.api["PyModule_AddStringConstant"]
        builder.call(add, [made, module.text("digest"), module.text(digest)])
        builder.call(add, [made, module.text("variant"), builder.load(chosen)])
    builder.ret(made)


_V2_ECX = sum(1 << bit for bit in (0, 1, 9, 13, 19, 20, 23))  # of leaf 1
_V3_ECX = sum(1 << bit for bit in (12, 22, 27, 28, 29))  # of leaf 1
_V3_EBX = sum(1 << bit for bit in (3, 5, 8))  # of leaf 7
_V3_EXTENDED_ECX = 1 << 5
_VECTORS_ECX = 1 << 10  # of leaf 7
_YMM_STATE = 6  # that the operating system saves


def _cpuid(builder, leaf: int) -> list[Any]:
    """The four words that an x86 processor says of itself."""
    four = ir.FunctionType(ir.LiteralStructType([_I32] * 4), [_I32, _I32])
    arguments = [_I32(leaf), _I32(0)]
    found = builder.asm(four, "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}", arguments, True)
    return [builder.extract_value(found, each) for each in range(4)]


def _saved_state(builder):
    """The registers that the operating system saves, as bits."""
    two = ir.FunctionType(ir.LiteralStructType([_I32] * 2), [_I32])
    found = builder.asm(two, "xgetbv", "={ax},={dx},{cx}", [_I32(0)], True)
    return builder.extract_value(found, 0)


def cpu_level(module: _Module, cpuid=_cpuid, saved_state=_saved_state):
    """``cpu_level()``: what an x86 processor has, as bits."""
    function, builder = module.function("cpu_level", ir.FunctionType(_I64, []))

    def holds(word, bits: int):
        return builder.icmp_unsigned("==", builder.and_(word, _I32(bits)), _I32(bits))

    most = cpuid(builder, 0)[0]
    features = cpuid(builder, 1)[2]
    with builder.if_then(builder.not_(holds(features, _V2_ECX))):
        builder.ret(_I64(0))
    is_newer = builder.icmp_unsigned(">=", most, _I32(7))
    with builder.if_then(builder.not_(builder.and_(is_newer, holds(features, _V3_ECX)))):
        builder.ret(_I64(V2))
    _, more, vectors, _ = cpuid(builder, 7)
    extended = cpuid(builder, 0x80000001 - 2**32)[2]
    has_v3 = builder.and_(holds(more, _V3_EBX), holds(extended, _V3_EXTENDED_ECX))
    has_v3 = builder.and_(has_v3, holds(saved_state(builder), _YMM_STATE))
    with builder.if_then(builder.not_(has_v3)):
        builder.ret(_I64(V2))
    has_vectors = holds(vectors, _VECTORS_ECX)
    builder.ret(builder.select(has_vectors, _I64(V2 | V3 | VECTORS), _I64(V2 | V3)))
    return function
