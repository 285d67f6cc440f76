"""Compile all kernels for one kind of processor: ``python -m kernel_compiler VARIANT FOLDER``.

It is a process of its own, because numba takes its settings when it is imported.  More arguments
are the platforms: each gets an object in the folder.  What the kernels take is pickled beside it.
"""

import os
import pickle
import sys
from pathlib import Path

from kernel_compiler import begin


def main(name: str, folder: Path, platforms: list[str]) -> None:
    """Write the objects of a variant, and the list of its kernels."""
    begin()
    from kernel_compiler.variants import PLATFORMS, VARIANTS

    variant = VARIANTS[name]
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = variant.cpu, variant.features
    from llvmlite import binding as llvm

    from kernel_compiler.link import machine, optimize, written_arrays
    from kernel_compiler.lower import lower_all

    is_checked = os.environ.get("SEGMENTLOG_CHECKED_KERNELS") == "1"
    lowered_module, lowered = lower_all(is_checked=is_checked)
    bitcode = lowered_module.as_bitcode()
    for platform in platforms:
        processor = machine(PLATFORMS[platform].triple, variant.cpu, variant.features)
        module = llvm.parse_bitcode(bitcode)
        module.triple, module.data_layout = processor.triple, str(processor.target_data)
        optimize(module, processor)
        addresses = ", ".join(f'ptr @"{each.symbol}"' for each in lowered)
        declared = "".join(f'declare i32 @"{each.symbol}"()\n' for each in lowered)
        module.link_in(
            llvm.parse_assembly(
                f'target triple = "{module.triple}"\n'
                f'target datalayout = "{module.data_layout}"\n'
                f'{declared}@"kernels.{name}" = constant [{len(lowered)} x ptr] [{addresses}]\n'
            )
        )
        for each in (*module.functions, *module.global_variables):
            if not each.is_declaration and each.name != f"kernels.{name}":
                each.linkage = "internal"  # all variants have the same names
        Path(folder, f"{platform}.{name}.o").write_bytes(processor.emit_object(module))
        written = {
            each.symbol: written_arrays(module.get_function(each.symbol)) for each in lowered
        }
        lowered = [each._replace(written=written[each.symbol]) for each in lowered]
    Path(folder, f"{name}.kernels").write_bytes(pickle.dumps(lowered))


main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
