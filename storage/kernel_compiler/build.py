"""Build the extension module: ``python -m kernel_compiler.build [VARIANT …]``."""

import os
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path

__all__ = ["KERNELS", "build"]

_ENGINE = Path(__file__).parents[1] / "segmentlog"
KERNELS = _ENGINE / "format" / "kernels"


def build(folder: Path = KERNELS, variants: Sequence[str] = ()) -> list[Path]:
    """Compile and link the kernels; the files that were made.

    Parameters
    ----------
    folder : that gets a file for each platform.
    variants : kinds of processors for this platform, or ``all`` for all platforms; by default the
        best that this machine has.
    """
    # A build has numpy and numba alone, so the engine's own ``__init__`` cannot be imported.
    os.environ["SEGMENTLOG_PYTHON_KERNELS"] = "1"
    if "segmentlog" not in sys.modules:
        sys.modules["segmentlog"] = package = types.ModuleType("segmentlog")
        package.__path__ = [str(_ENGINE)]
    from kernel_compiler import platforms
    from kernel_compiler.lower import lower_all
    from segmentlog.native import PLATFORM, digest_of, file_of

    if "all" in variants:
        of_platform = {name: platforms.variants_of(name) for name in platforms.PLATFORMS}
    else:
        of_platform = {PLATFORM: [*variants] or [platforms.host_variant()]}
    is_checked = os.environ.get("SEGMENTLOG_CHECKED_KERNELS") == "1"
    (kernels, lowered), (glue, called) = lower_all(is_checked=is_checked)
    from kernel_compiler.glue import entries, extension  # which has been lowered now

    made = []
    with tempfile.TemporaryDirectory() as directory:
        for platform, names in of_platform.items():
            objects = [Path(directory, f"{platform}.{name}.o") for name in ("", *names)]
            for name, file in zip(names, objects[1:], strict=True):
                text = entries(kernels, lowered, name)
                optimized = platforms.compile_for(
                    platform, platforms.VARIANTS[name], kernels, text, f"kernels.{name}", file
                )
            symbols = [each.symbol for each in called]
            text = extension(lowered, optimized, names, digest_of(KERNELS), symbols)
            # The code that asks which processor this is runs on all of them.
            least = platforms.VARIANTS[names[0]]._replace(needed=0)
            if least.cpu.startswith("x86"):
                least = least._replace(cpu="x86-64")
            platforms.compile_for(platform, least, glue, text, "PyInit__compiled", objects[0])
            target = folder / file_of(platform)
            unfinished = target.with_name(f"{target.name}.{os.getpid()}")
            platforms.link(objects, unfinished, platform)
            unfinished.replace(target)
            made.append(target)
    return made


if __name__ == "__main__":
    build(KERNELS, sys.argv[1:])
