"""The choice among the kernels of a module, and that all of them give the same."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from segmentlog import native

STORAGE = Path(__file__).parents[4] / "storage"

#: Where ``cpuid`` has a feature: leaf, word, bit.
PLACES = {
    "sse3": (1, 2, 0), "pclmulqdq": (1, 2, 1), "ssse3": (1, 2, 9), "fma": (1, 2, 12),
    "cx16": (1, 2, 13), "sse4.1": (1, 2, 19), "sse4.2": (1, 2, 20), "movbe": (1, 2, 22),
    "popcnt": (1, 2, 23), "osxsave": (1, 2, 27), "avx": (1, 2, 28), "f16c": (1, 2, 29),
    "bmi1": (7, 1, 3), "avx2": (7, 1, 5), "bmi2": (7, 1, 8), "vpclmulqdq": (7, 2, 10),
    "lzcnt": (0x80000001, 2, 5),
}  # fmt: skip
NEHALEM = {"sse3", "ssse3", "cx16", "sse4.1", "sse4.2", "popcnt"}
WESTMERE = NEHALEM | {"pclmulqdq"}
SANDY_BRIDGE = WESTMERE | {"osxsave", "avx"}
HASWELL = SANDY_BRIDGE | {"fma", "movbe", "f16c", "bmi1", "avx2", "bmi2", "lzcnt"}
ICE_LAKE = HASWELL | {"vpclmulqdq"}
V2, V3, VECTORS = KNOWN = "x86-64-v2", "x86-64-v3", "x86-64-v3-vpclmulqdq"


@pytest.mark.parametrize(
    ("features", "newest_leaf", "saved", "best"),
    [
        (NEHALEM, 11, 0, None),
        (WESTMERE, 11, 0, V2),
        (SANDY_BRIDGE, 13, 7, V2),
        (HASWELL, 13, 7, V3),
        (ICE_LAKE, 27, 0xE7, VECTORS),
        (ICE_LAKE, 27, 3, V2),  # the operating system does not save vectors
        (ICE_LAKE - {"osxsave"}, 27, 0, V2),
        (HASWELL | {"vpclmulqdq"} - {"lzcnt"}, 3, 7, V2),  # firmware hides newer leaves
        (ICE_LAKE - {"bmi2"}, 27, 7, V2),
    ],
)
def test_the_variants_that_a_processor_runs(
    features: set[str],
    newest_leaf: int,
    saved: int,
    best: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The code that asks ``cpuid`` runs here, in Python, with the answers of other processors."""
    monkeypatch.syspath_prepend(str(STORAGE))
    glue = importlib.import_module("kernel_compiler.glue")

    def answers(word: int) -> Callable[[int], int]:
        def answer(leaf: int) -> int:
            places = [PLACES[each] for each in features]
            bits = sum(1 << bit for place, of, bit in places if (place, of) == (leaf, word))
            return newest_leaf if (leaf, word) == (0, 0) else bits

        return answer

    for word, name in enumerate(("_eax", "_ebx", "_ecx")):
        monkeypatch.setattr(glue, name, answers(word))
    monkeypatch.setattr(glue, "_saved_state", lambda _: saved)
    monkeypatch.setattr(glue, "_has_cpuid", lambda: True)

    level = glue.cpu_level()
    variants = {name: glue.VARIANTS[name].needed for name in KNOWN}

    assert best == max((name for name in KNOWN if variants[name] <= level), default=None)


def run(code: str, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A new interpreter, in which no kernels are asked for but by these variables."""
    settings = {key: each for key, each in os.environ.items() if not key.startswith("SEGMENTLOG_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**settings, **variables},
    )


@pytest.mark.parametrize("asked", ["x86-64-v9", "x86-64-v3 "])
def test_kernels_that_are_not_there_are_an_error(asked: str) -> None:
    """It says what there is; the kernels do not run in Python instead."""
    done = run("from segmentlog import native", {"SEGMENTLOG_KERNELS": asked})

    assert f"KernelsError: SEGMENTLOG_KERNELS is {asked}: " in done.stderr
    *_, listed = done.stderr.strip().partition("no kernels of this name among its ")
    assert native.VARIANT in listed.removesuffix("; unset it for the best").split(", ")


def test_an_empty_setting_asks_for_the_best() -> None:
    """As if it were not set."""
    code = "from segmentlog import native; print(native.VARIANT)"
    named = run(code, {"SEGMENTLOG_KERNELS": native.VARIANT or ""})

    assert f"{native.VARIANT}\n" == named.stdout
    assert run(code, {}).stdout == run(code, {"SEGMENTLOG_KERNELS": ""}).stdout != "None\n"


#: Prints the kernels that run, and a digest of what they make.
RESULTS = (STORAGE.parent / "tests" / "support" / "kernel_results.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # which three variants take on a busy machine
def test_all_variants_give_the_same(all_variants: dict[str, str]) -> None:
    """Checksums, logs and their rows, and compacted logs are those of kernels in Python."""
    in_python = run(RESULTS, {"SEGMENTLOG_PYTHON_KERNELS": "1"}).stdout.split()
    names = ["x86-64-v2", "x86-64-v3", "x86-64-v3-vpclmulqdq"]
    names = names[: 1 + names.index(native.VARIANT or "")]
    found = [
        run(RESULTS, all_variants | {"SEGMENTLOG_KERNELS": each}).stdout.split() for each in names
    ]

    assert "None" == in_python[0]
    assert [[each, in_python[1]] for each in names] == found
