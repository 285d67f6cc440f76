"""The kinds of processors that kernels are compiled for."""

import platform
from typing import NamedTuple

__all__ = ["V2", "V3", "VARIANTS", "VECTORS", "Variant", "host_variant", "variants_of"]

#: Bits of what a processor has: x86-64-v2 with PCLMULQDQ, x86-64-v3, and VPCLMULQDQ.
V2, V3, VECTORS = 1, 2, 4

_V2 = "+cx16,+popcnt,+sse3,+sse4.1,+sse4.2,+ssse3,+pclmul"
_V3 = f"{_V2},+avx,+avx2,+bmi,+bmi2,+f16c,+fma,+lzcnt,+movbe"


class Variant(NamedTuple):
    """A processor as LLVM names it, and the bits that it needs."""

    cpu: str
    features: str
    needed: int


#: The best first.
VARIANTS = {
    "x86-64-v3-vpclmulqdq": Variant("x86-64-v3", f"{_V3},+vpclmulqdq", V2 | V3 | VECTORS),
    "x86-64-v3": Variant("x86-64-v3", _V3, V2 | V3),
    "x86-64-v2": Variant("x86-64-v2", _V2, V2),
    "aarch64": Variant("generic", "", 0),
}


def variants_of(machine: str = platform.machine()) -> list[str]:
    """Names of the variants for a machine, the best first; none for an unknown machine."""
    if machine in ("x86_64", "AMD64"):
        return [name for name in VARIANTS if name.startswith("x86")]
    return ["aarch64"] if machine in ("aarch64", "arm64") else []


def host_variant() -> str:
    """The best variant for this processor."""
    from llvmlite import binding as llvm

    found = {f"+{name}" for name, has in llvm.get_host_cpu_features().items() if has}
    for name in variants_of():
        if found.issuperset(filter(None, VARIANTS[name].features.split(","))):
            return name
    message = f"no kernels can be compiled for {platform.machine()} processors of this kind"
    raise RuntimeError(message)
