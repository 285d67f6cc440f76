"""From LLVM modules to a file that Python imports."""

import shutil
import subprocess
import sys
from pathlib import Path

from llvmlite import binding as llvm

__all__ = ["link", "machine", "optimize", "written_arrays"]


def machine(cpu: str, features: str) -> llvm.TargetMachine:
    """LLVM's code generator for one kind of processor."""
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )


def optimize(module: llvm.ModuleRef, target: llvm.TargetMachine) -> None:
    """Run LLVM once over all kernels."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(target, options)
    builder.getModulePassManager().run(module, builder)


def written_arrays(function: llvm.ValueRef) -> frozenset[int]:
    """Numbers of the arrays whose data LLVM has not found to be only read."""
    pointers = [each for each in function.arguments if str(each.type) == "ptr"][2:]
    return frozenset(
        number
        for number, each in enumerate(pointers[2::3])  # of each array: two unused, and the data
        if not {b"readonly", b"readnone"} & set(each.attributes)
    )


def link(objects: list[Path], target: Path) -> None:
    """Link with the C compiler, or with ziglang where there is none.

    No library is named: the process that imports the file has ``memcpy`` and CPython's functions.
    """
    if compiler := shutil.which("cc"):
        command = [compiler, "-shared", "-nostdlib", "-Wl,-z,now"]
    else:
        command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared"]
    subprocess.run([*command, "-o", str(target), *map(str, objects)], check=True)
