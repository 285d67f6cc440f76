"""Functions of LZ4 and zstd for kernels: found, tried, and freed in time."""

import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Iterator

import pytest

from segmentlog.format.kernels import inflate
from segmentlog.format.records import native_codecs
from segmentlog.format.records.native_codecs import NativeCodecs
from segmentlog.model import Codec

FUNCTIONS = {Codec.LZ4: inflate.LZ4_DECOMPRESS, Codec.ZSTD: inflate.ZSTD_DECOMPRESS}


@pytest.fixture(autouse=True)
def _looked_up_again() -> Iterator[None]:
    for each in (native_codecs._lz4, native_codecs._zstd):
        each.cache_clear()
    yield
    for each in (native_codecs._lz4, native_codecs._zstd):
        each.cache_clear()


def address(codec: Codec) -> int:
    """The address that a decoder finds for a codec."""
    codecs = NativeCodecs()
    codecs.load(codec)
    return int(codecs.addresses[FUNCTIONS[codec]])


@pytest.mark.parametrize("codec", FUNCTIONS)
def test_the_wheels_have_the_functions(codec: Codec) -> None:
    """A release that hides the functions would make reads slower, which no other test notices."""
    assert address(codec) > 0


@pytest.mark.parametrize("codec", FUNCTIONS)
@pytest.mark.parametrize("origin", [None, "/nowhere.so", "another module"])
def test_without_the_functions_there_is_no_address(
    codec: Codec, origin: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No address is found if the module, its file or the names in the library are missing."""
    spec = None
    if origin is not None:
        another = importlib.util.find_spec("_ctypes").origin
        place = another if origin == "another module" else origin
        spec = importlib.machinery.ModuleSpec("x", None, origin=place)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)

    assert inflate.UNAVAILABLE == address(codec)


@pytest.mark.parametrize(
    ("codec", "name"), [(Codec.LZ4, "_LZ4_FRAME"), (Codec.ZSTD, "_ZSTD_FRAME")]
)
def test_a_function_that_inflates_wrongly_is_not_used(
    codec: Codec, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each function is tried on a known frame before it is used."""
    frame = getattr(native_codecs, name)
    monkeypatch.setattr(native_codecs, name, frame.replace(b"segmentlog", b"segmentlag"))

    assert inflate.UNAVAILABLE == address(codec)


def test_contexts_are_freed_with_their_decoder_and_not_when_a_process_ends() -> None:
    """When a process ends, a daemon thread may still write to a context."""
    code = (
        "from segmentlog.format.records import native_codecs as there\n"
        "there._lz4().LZ4F_freeDecompressionContext = lambda _: print('lz4')\n"
        "there._zstd().ZSTD_freeDCtx = lambda _: print('zstd')\n"
        "kept, dropped = there.NativeCodecs(), there.NativeCodecs()\n"
        "for each in (3, 4):\n"
        "    kept.load(each)\n"
        "    dropped.load(each)\n"
        "del dropped\n"
        "print('end')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert {"lz4", "zstd"} == set(done.stdout.decode().split("end")[0].split())
    assert done.stdout.endswith(b"end\n")
