"""Build the extension module: ``python -m kernel_compiler.build [VARIANT …]``."""

import os
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
    from kernel_compiler import platforms
    from kernel_compiler.lower import lower_all
    from segmentlog.native import PLATFORM, digest_of, file_of

    if "all" in variants:
        of_platform = {name: each.variants for name, each in platforms.PLATFORMS.items()}
    else:
        of_platform = {PLATFORM: tuple(variants) or (platforms.host_variant(),)}
    is_checked = os.environ.get("SEGMENTLOG_CHECKED_KERNELS") == "1"
    (kernels, lowered), (glue, (call, start)) = lower_all(is_checked=is_checked)
    from kernel_compiler.extension import entries, extension, written_arrays  # after its `glue`

    made = []
    with tempfile.TemporaryDirectory() as directory:
        for platform, names in of_platform.items():
            objects = [Path(directory, f"{platform}.{name}.o") for name in ("", *names)]
            for name, file in zip(names, objects[1:], strict=True):
                cpu, features, _ = platforms.VARIANTS[name]
                text = entries(kernels, lowered, name)
                module = platforms.compile_for(
                    platform, cpu, features, kernels, text, f"kernels.{name}", file
                )
            written = [written_arrays(module.get_function(each.symbol)) for each in lowered]
            digest = digest_of(KERNELS)
            text = extension(lowered, written, names, digest, call.symbol, start.symbol)
            # The code that asks which processor this is runs on all of them.
            cpu = "x86-64" if names[0].startswith("x86") else "generic"
            platforms.compile_for(platform, cpu, "", glue, text, "PyInit__compiled", objects[0])
            target = folder / file_of(platform)
            unfinished = target.with_name(f"{target.name}.{os.getpid()}")
            platforms.link(objects, unfinished, platform)
            unfinished.replace(target)
            made.append(target)
    return made


if __name__ == "__main__":
    build(KERNELS, sys.argv[1:])
