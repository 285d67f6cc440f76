"""What the headers of a library for macOS say: its processor, its commands and its symbols."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

_MAGIC = 0xFEEDFACF
_PROCESSORS = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_KINDS = {6: "dylib", 8: "bundle"}
_SYMTAB, _DYLIB, _BUILD_VERSION, _SIGNATURE = 0x2, 0xC, 0x32, 0x1D
_VERSION_MIN = 0x24  #: in the place of a build version, in files of older linkers
_LEAST_AT = {_BUILD_VERSION: 12, _VERSION_MIN: 8}
_TYPE, _UNDEFINED, _EXTERNAL, _DEBUG = 0x0E, 0x00, 0x01, 0xE0


@dataclass
class MachO:
    """A library of one processor, as its load commands describe it."""

    processor: str
    kind: str
    least_macos: tuple[int, int] = (0, 0)
    libraries: list[str] = field(default_factory=list)  # that the loader loads with it
    is_signed: bool = False
    defined: set[str] = field(default_factory=set)  # external symbols
    undefined: set[str] = field(default_factory=set)


def parse(path: Path) -> MachO:
    """Parse a file of 64 bits; `ValueError` if it is none."""
    data = path.read_bytes()
    magic, processor, _, kind, n_commands, _, _, _ = struct.unpack_from("<8I", data)
    if magic != _MAGIC:
        message = f"{path} begins with {magic:#x}, and is no library of 64 bits for macOS"
        raise ValueError(message)
    found, at = MachO(_PROCESSORS[processor], _KINDS[kind]), 32
    for _ in range(n_commands):
        command, n_bytes = struct.unpack_from("<2I", data, at)
        if command & 0x7FFFFFFF == _DYLIB:
            (start,) = struct.unpack_from("<I", data, at + 8)
            library = data[at + start : at + n_bytes]
            found.libraries.append(library.split(b"\0")[0].decode())
        elif command in (_BUILD_VERSION, _VERSION_MIN):
            (least,) = struct.unpack_from(
                "<I", data, at + (12 if command == _BUILD_VERSION else 8)
            )
            found.least_macos = least >> 16, least >> 8 & 0xFF
        elif command == _SIGNATURE:
            found.is_signed = True
        elif command == _SYMTAB:
            symbols, n_symbols, strings, _ = struct.unpack_from("<4I", data, at + 8)
            for number in range(n_symbols):
                name_at, bits = struct.unpack_from("<IB", data, symbols + 16 * number)
                if bits & _EXTERNAL and not bits & _DEBUG:
                    begin = strings + name_at
                    name = data[begin : data.index(b"\0", begin)].decode()
                    is_undefined = bits & _TYPE == _UNDEFINED
                    (found.undefined if is_undefined else found.defined).add(name)
        at += n_bytes
    return found
