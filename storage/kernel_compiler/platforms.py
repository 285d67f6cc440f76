"""The platforms and the kinds of processors that kernels are compiled for, and their linkers."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from llvmlite import binding as llvm

from segmentlog.native import PLATFORM

__all__ = [
    "FEATURES",
    "PLATFORMS",
    "V2",
    "VARIANTS",
    "VECTORS",
    "Variant",
    "compile_for",
    "host_variant",
    "link",
    "variants_of",
]

#: What x86 processors have, by LLVM's names, in the order in which they got it.  Where ``cpuid``
#: says so: leaf, whether the bit is in ECX and not in EBX, and the bit.
FEATURES = {
    "sse3": (1, True, 0),
    "ssse3": (1, True, 9),
    "cx16": (1, True, 13),
    "sse4.1": (1, True, 19),
    "sse4.2": (1, True, 20),
    "popcnt": (1, True, 23),
    "pclmul": (1, True, 1),
    "fma": (1, True, 12),
    "movbe": (1, True, 22),
    "avx": (1, True, 28),
    "f16c": (1, True, 29),
    "bmi": (7, False, 3),
    "avx2": (7, False, 5),
    "bmi2": (7, False, 8),
    "lzcnt": (0x80000001, True, 5),
    "vpclmulqdq": (7, True, 10),
}
#: How many of them x86-64-v2 with PCLMULQDQ has, x86-64-v3, and x86-64-v3 with VPCLMULQDQ.
V2, V3, VECTORS = 7, 15, 16


class Variant(NamedTuple):
    """A processor as LLVM names it, and how many of `FEATURES` it needs."""

    cpu: str
    needed: int


VARIANTS = {
    "x86-64-v3-vpclmulqdq": Variant("x86-64-v3", VECTORS),
    "x86-64-v3": Variant("x86-64-v3", V3),
    "x86-64-v2": Variant("x86-64-v2", V2),
    "aarch64": Variant("generic", 0),
}

#: Targets of LLVM, by the name of `segmentlog.native.PLATFORM`.
PLATFORMS = {
    "linux-x86_64": "x86_64-unknown-linux-gnu",
    "linux-aarch64": "aarch64-unknown-linux-gnu",
    "darwin-x86_64": "x86_64-apple-macosx11.0.0",
    "darwin-arm64": "aarch64-apple-macosx11.0.0",
}


def variants_of(platform: str) -> list[str]:
    """The variants for the processors of a platform, the best first."""
    is_x86 = platform.endswith("x86_64")
    return [name for name, each in VARIANTS.items() if each.cpu.startswith("x86") == is_x86]


def host_variant() -> str:
    """The best variant that runs on this processor; `RuntimeError` if there is none."""
    has = llvm.get_host_cpu_features()
    for name in variants_of(PLATFORM) if PLATFORM in PLATFORMS else ():
        if all(has.get(each) for each in [*FEATURES][: VARIANTS[name].needed]):
            return name
    message = f"no kernels can be compiled for this processor of {PLATFORM}"
    raise RuntimeError(message)


def compile_for(
    platform: str, variant: Variant, source: llvm.ModuleRef, text: str, exported: str, target: Path
) -> llvm.ModuleRef:
    """Link lowered code with more, run LLVM once over all of it, and write the code of processors.

    Other objects see one name of it.  Returns the optimized module.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for ``cpuid``
    features = ",".join(f"+{each}" for each in [*FEATURES][: variant.needed])
    machine = llvm.Target.from_triple(PLATFORMS[platform]).create_target_machine(
        cpu=variant.cpu, features=features, opt=3, reloc="pic", codemodel="default"
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
        processor, _, system = PLATFORMS[platform].split("-")
        # Without a version, the library would ask for the newest one that ziglang knows.
        target_name = f"{processor}-macos.{system.removeprefix('macosx')}"
        command = [sys.executable, "-m", "ziglang", "cc", "-target", target_name, *options]
    subprocess.run([*command, "-o", str(target), *map(str, objects)], check=True)
