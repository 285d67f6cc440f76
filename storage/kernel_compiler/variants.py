"""The platforms and the kinds of processors that kernels are compiled for."""

from typing import NamedTuple

from segmentlog.native import PLATFORM

__all__ = ["PLATFORMS", "V2", "V3", "VARIANTS", "VECTORS", "Platform", "Variant", "host_variant"]

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
    """The best variant that runs on this processor.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    from llvmlite import binding as llvm

    found = {f"+{name}" for name, has in llvm.get_host_cpu_features().items() if has}
    for name in PLATFORMS[PLATFORM].variants if PLATFORM in PLATFORMS else ():
        if found.issuperset(filter(None, VARIANTS[name].features.split(","))):
            return name
    message = f"no kernels can be compiled for this processor of {PLATFORM}"
    raise RuntimeError(message)
