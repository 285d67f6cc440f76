"""Build the extension module: ``python -m kernel_compiler.build [VARIANT …]``."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernel_compiler.sources import STORAGE, begin

__all__ = ["TARGET", "build"]

TARGET = STORAGE / "segmentlog" / "kernels" / "_compiled.abi3.so"


def build(target: Path = TARGET, variants: Sequence[str] = ()) -> None:
    """Compile and link the kernels.

    Parameters
    ----------
    target : the file to make.
    variants : kinds of processors, the best first; by default the best that this machine has.
    """
    begin()
    from llvmlite import binding as llvm

    from kernel_compiler.extension import extension
    from kernel_compiler.link import link, machine
    from kernel_compiler.variants import host_variant
    from segmentlog.native import digest_of

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # for `cpuid`
    variants = variants or [host_variant()]
    with tempfile.TemporaryDirectory() as directory:
        objects = [Path(directory, f"{each}.o") for each in variants]
        for name, path in zip(variants, objects, strict=True):
            command = [sys.executable, "-m", "kernel_compiler", name, str(path)]
            seen = os.pathsep.join([str(STORAGE), *sys.path])  # also of an isolated build
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": seen})
        lowered = pickle.loads(objects[0].with_suffix(".kernels").read_bytes())
        base = machine("x86-64" if variants[0].startswith("x86") else "generic", "")
        text = extension(
            lowered, variants, digest_of(TARGET.parent), llvm.get_process_triple(),
            str(base.target_data),
        )  # fmt: skip
        module = llvm.parse_assembly(text)
        module.verify()
        start = Path(directory, "start.o")
        start.write_bytes(base.emit_object(module))
        made = target.with_name(f"{target.name}.{os.getpid()}")
        link([start, *objects], made)
        made.replace(target)


if __name__ == "__main__":
    build(TARGET, sys.argv[1:])
