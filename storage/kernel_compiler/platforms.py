"""The platforms and the kinds of processors that kernels are compiled for, and their linkers."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from llvmlite import binding as llvm

from segmentlog.native import PLATFORM

__all__ = [
    "PLATFORMS", "V2", "V3", "VARIANTS", "VECTORS", "Platform", "Variant", "compile_for",
    "host_variant", "link",
]  # fmt: skip

#: Bits of what a processor has: x86-64-v2 with PCLMULQDQ, x86-64-v3, and VPCLMULQDQ.
V2, V3, VECTORS = 1, 2, 4

_V2 = "+cx16,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3,+pclmul"
_V3 = f"{_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe"


class Variant(NamedTuple):
    """A processor as LLVM names it, and the bits that it needs."""

    cpu: str
    features: str
    needed: int


VARIANTS = {
    "x86-64-v3-vpclmulqdq": Variant("x86-64-v3", f"{_V3},+vpclmulqdq", V2 | V3 | VECTORS),
    "x86-64-v3": Variant("x86-64-v3", _V3, V2 | V3),
    "x86-64-v2": Variant("x86-64-v2", _V2, V2),
    "aarch64": Variant("generic", "", 0),
}
_X86 = ("x86-64-v3-vpclmulqdq", "x86-64-v3", "x86-64-v2")


class Platform(NamedTuple):
    """A platform as LLVM and as zig name it, and its variants, the best first."""

    triple: str
    zig: str
    variants: tuple[str, ...]


#: By the name of `segmentlog.native.PLATFORM`.
PLATFORMS = {
    "linux-x86_64": Platform("x86_64-unknown-linux-gnu", "x86_64-linux-gnu", _X86),
    "linux-aarch64": Platform("aarch64-unknown-linux-gnu", "aarch64-linux-gnu", ("aarch64",)),
    "darwin-x86_64": Platform("x86_64-apple-macosx11.0.0", "x86_64-macos", _X86),
    "darwin-arm64": Platform("arm64-apple-macosx11.0.0", "aarch64-macos", ("aarch64",)),
}


def host_variant() -> str:
    """The best variant that runs on this processor; `RuntimeError` if there is none."""
    found = {f"+{name}" for name, has in llvm.get_host_cpu_features().items() if has}
    for name in PLATFORMS[PLATFORM].variants if PLATFORM in PLATFORMS else ():
        if found.issuperset(filter(None, VARIANTS[name].features.split(","))):
            return name
    message = f"no kernels can be compiled for this processor of {PLATFORM}"
    raise RuntimeError(message)


def compile_for(
    platform: str, cpu: str, features: str, source: llvm.ModuleRef, text: str, exported: str,
    target: Path,
) -> llvm.ModuleRef:  # fmt: skip
    """Link lowered code with more, run LLVM once over all of it, and write the code of processors.

    Other objects see one name of it.  Returns the optimized module.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for ``cpuid``
    machine = llvm.Target.from_triple(PLATFORMS[platform].triple).create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default"
    )
    module = llvm.parse_bitcode(source.as_bitcode())
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    head = f'target triple = "{module.triple}"\ntarget datalayout = "{module.data_layout}"\n'
    module.link_in(llvm.parse_assembly(head + text))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != exported:
            each.linkage = "internal"  # all variants have the same names
    target.write_bytes(machine.emit_object(module))
    return module


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
