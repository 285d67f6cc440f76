"""Build the extension module: ``python -m kernel_compiler.build [VARIANT …]``."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernel_compiler import STORAGE, begin

__all__ = ["KERNELS", "build"]

KERNELS = STORAGE / "segmentlog" / "format" / "kernels"


def build(folder: Path = KERNELS, variants: Sequence[str] = ()) -> list[Path]:
    """Compile and link the kernels; the files that were made.

    Parameters
    ----------
    folder : that gets a file for each platform.
    variants : kinds of processors for this platform, or ``all`` for all platforms; by default the
        best that this machine has.
    """
    begin()
    from llvmlite import binding as llvm

    from kernel_compiler.extension import extension
    from kernel_compiler.link import link, machine
    from kernel_compiler.variants import PLATFORMS, host_variant
    from segmentlog.native import PLATFORM, digest_of, file_of

    llvm.initialize_native_asmparser()  # for `cpuid`
    if "all" in variants:
        of_platform = {name: each.variants for name, each in PLATFORMS.items()}
    else:
        of_platform = {PLATFORM: tuple(variants) or (host_variant(),)}
    made = []
    with tempfile.TemporaryDirectory() as directory:
        for name in dict.fromkeys(name for names in of_platform.values() for name in names):
            platforms = [each for each, names in of_platform.items() if name in names]
            command = [sys.executable, "-m", "kernel_compiler", name, directory, *platforms]
            seen = os.pathsep.join([str(STORAGE), *sys.path])  # also of an isolated build
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": seen})
        for platform, names in of_platform.items():
            lowered = pickle.loads(Path(directory, f"{names[0]}.kernels").read_bytes())
            cpu = "x86-64" if names[0].startswith("x86") else "generic"
            base = machine(PLATFORMS[platform].triple, cpu, "")
            text = extension(
                lowered, names, digest_of(KERNELS), base.triple, str(base.target_data)
            )
            module = llvm.parse_assembly(text)
            module.verify()
            start = Path(directory, f"{platform}.o")
            start.write_bytes(base.emit_object(module))
            objects = [start, *(Path(directory, f"{platform}.{each}.o") for each in names)]
            target = folder / file_of(platform)
            unfinished = target.with_name(f"{target.name}.{os.getpid()}")
            link(objects, unfinished, platform)
            unfinished.replace(target)
            made.append(target)
    return made


if __name__ == "__main__":
    build(KERNELS, sys.argv[1:])
