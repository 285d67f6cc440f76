# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""What the compiler puts in the place of the kernels' functions for memory and checksums."""

import inspect

from numba.extending import overload

from kernel_compiler import crc_block, instructions
from segmentlog.kernels import crc32c, memory

#: The instruction for each function.
_INSTRUCTIONS = {
    memory.load_i64: instructions.load_be64,
    memory.load_i32: instructions.load_be32,
    memory.load_i16: instructions.load_be16,
    memory.load_u8: instructions.load_u8,
    memory.load_item: instructions.load_item,
    memory.store_item: instructions.store_item,
    memory.prefetch: instructions.prefetch,
    memory.load_u32: instructions.load_le32,
    memory.load_u64: instructions.load_le64,
    memory.store_i64: instructions.store_be64,
    memory.store_i32: instructions.store_be32,
    memory.store_i16: instructions.store_be16,
    memory.store_u64: instructions.store_le64,
    memory.store_u8: instructions.store_u8,
    memory.leading_zeros: instructions.leading_zeros,
    memory.trailing_zeros: instructions.trailing_zeros,
    memory.call_5: instructions.call_5,
    memory.call_6: instructions.call_6,
    memory.copy_bytes: instructions.memcpy,
}


def _register(function, instruction):
    """Call `instruction` where a kernel calls `function`: numba wants the same arguments."""
    arguments = ", ".join(inspect.signature(function).parameters)
    code = f"lambda {arguments}: lambda {arguments}: instruction({arguments})"
    overload(function)(eval(code, {"instruction": instruction}))


for _function, _instruction in _INSTRUCTIONS.items():
    _register(_function, _instruction)


@overload(memory.copy_wide)
def _copy_wide(target, to, source, at, n_bytes):
    def copy(target, to, source, at, n_bytes):
        if n_bytes <= 32:
            instructions.copy_32(target, to, source, at)
            return
        instructions.copy_64(target, to, source, at)
        if n_bytes > 64:
            instructions.copy_64(target, to + 64, source, at + 64)
            if n_bytes > 128:
                instructions.copy_64(target, to + 128, source, at + 128)
                instructions.copy_64(target, to + 192, source, at + 192)

    return copy


@overload(crc32c.crc32c, jit_options={"forceinline": True})
def _crc32c(buf, start, end):
    if crc_block.HAS_VECTORS:
        return crc_block.range_by_vectors
    return crc_block.range_by_words if crc_block.HAS_WORDS else crc_block.range_by_table
