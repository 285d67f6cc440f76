"""From LLVM modules to a file that Python imports."""

import shutil
import subprocess
import sys
from pathlib import Path

from llvmlite import binding as llvm

from kernel_compiler.variants import PLATFORMS
from segmentlog.native import PLATFORM

__all__ = ["link", "machine", "optimize", "written_arrays"]


def machine(triple: str, cpu: str, features: str) -> llvm.TargetMachine:
    """LLVM's code generator for one platform and one kind of processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(triple).create_target_machine(
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


def link(objects: list[Path], target: Path, platform: str) -> None:
    """Link with the C compiler, or with ziglang for other platforms and where there is none.

    On Linux, no library is named, so the file is for any C library: the process that imports it
    has ``memcpy`` and CPython's functions.
    """
    compiler = shutil.which("cc") if platform == PLATFORM else None
    is_linux = platform.startswith("linux")
    options = ["-shared", "-undefined", "dynamic_lookup"]
    if compiler is not None:
        command = [compiler, *(["-shared", "-nostdlib", "-Wl,-z,now"] if is_linux else options)]
    elif is_linux:
        command = [sys.executable, "-m", "ziglang", "ld.lld", "-shared"]
    else:
        named = ["-target", PLATFORMS[platform].zig]
        command = [sys.executable, "-m", "ziglang", "cc", *named, *options]
    subprocess.run([*command, "-o", str(target), *map(str, objects)], check=True)
