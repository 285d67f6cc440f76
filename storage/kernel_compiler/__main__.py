"""Compile all kernels for one kind of processor: ``python -m kernel_compiler VARIANT OBJECT``.

It is a process of its own, because numba takes its settings when it is imported.  What the kernels
take is pickled beside the object.
"""

import os
import pickle
import sys
from pathlib import Path

from kernel_compiler.variants import VARIANTS


def main(name: str, target: Path) -> None:
    """Write the object of a variant, and the list of its kernels."""
    variant = VARIANTS[name]
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = variant.cpu, variant.features
    from llvmlite import binding as llvm

    from kernel_compiler.link import machine, optimize, written_arrays
    from kernel_compiler.lower import lower_all

    is_checked = os.environ.get("SEGMENTLOG_CHECKED_KERNELS") == "1"
    module, lowered = lower_all(is_checked=is_checked)
    processor = machine(variant.cpu, variant.features)
    optimize(module, processor)
    lowered = [
        each._replace(written=written_arrays(module.get_function(each.symbol))) for each in lowered
    ]
    addresses = ", ".join(f'ptr @"{each.symbol}"' for each in lowered)
    declared = "".join(f'declare i32 @"{each.symbol}"()\n' for each in lowered)
    module.link_in(
        llvm.parse_assembly(
            f'target triple = "{module.triple}"\ntarget datalayout = "{module.data_layout}"\n'
            f'{declared}@"kernels.{name}" = constant [{len(lowered)} x ptr] [{addresses}]\n'
        )
    )
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != f"kernels.{name}":
            each.linkage = "internal"  # all variants have the same names
    target.write_bytes(processor.emit_object(module))
    target.with_suffix(".kernels").write_bytes(pickle.dumps(lowered))


main(sys.argv[1], Path(sys.argv[2]))
