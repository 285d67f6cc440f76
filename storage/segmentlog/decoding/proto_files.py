"""Texts of protobuf schemas as descriptors.

`protoc` compiles them, in a process of its own: its errors are text on a stream, and a text that
takes too long or too much memory ends that process alone.  It works in a temporary folder, which
has the schemas; files that protobuf itself brings are given as descriptors.  So an import reads
no other file.

Serializers also register descriptors, in base64.  They need no compiler.
"""

import base64
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from segmentlog.decoding.schema import UnusableSchemaError, needed

#: The name of the schema itself; no reference may have it.
MAIN = "__schema__.proto"

_MOST_BYTES = 8 << 20  #: texts of a schema and its references
_MOST_SECONDS = 20

_COMPILE = f"""
import contextlib, resource, sys
from grpc_tools import protoc
for limit, most in [("AS", 2 << 30), ("CPU", {_MOST_SECONDS})]:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (most, most))
sys.exit(protoc.main(sys.argv))
"""

#: Lines of protoc that are no errors.
_OF_LOG = re.compile(r"^[WI]\d{4} |^WARNING: |: warning: ")

#: Files that need no reference, because protobuf and the packages of its schemas bring them.
_BROUGHT = re.compile(r"google/(?:protobuf|type)/[a-z_]{1,40}\.proto")

_DECIMAL = "syntax='proto3'; package confluent.type; "
_META = "syntax='proto3'; package confluent; import 'google/protobuf/descriptor.proto'; "
#: Files that the serializers of Confluent bring, by their fields.
_OF_CONFLUENT = {
    "confluent/type/decimal.proto": _DECIMAL
    + "message Decimal { bytes value = 1; uint32 precision = 2; uint32 scale = 3; }",
    "confluent/meta.proto": _META
    + "message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }"
    + "".join(
        f"extend google.protobuf.{each}Options {{ Meta {each.lower()}_meta = 1088; }} "
        for each in ("File", "Message", "Field", "Enum", "EnumValue")
    ).replace("enumvalue_meta", "enum_value_meta"),
}


def descriptors(text: str, references: Sequence[tuple[str, str]]) -> list[Any]:
    """Descriptors of files, each before those that import it, and at last that of `text`.

    `references`: names and texts of the files that it imports.  Raises `UnusableSchemaError`.
    """
    if sum(len(each) for _, each in [("", text), *references]) > _MOST_BYTES:
        raise UnusableSchemaError(f"it and its references have more than {_MOST_BYTES} characters")
    files = _named(references) | {MAIN: text}
    made = {name: found for name, each in files.items() if (found := _in_base64(each, name))}
    texts = {name: each for name, each in files.items() if name not in made}
    if texts:
        imported = {each for text in texts.values() for each in re.findall(r"[\w/]+\.proto", text)}
        texts |= {name: _OF_CONFLUENT[name] for name in _OF_CONFLUENT.keys() & imported - {*files}}
        return _compiled(texts, [*_brought(_names_of_brought()), *made.values()])
    imported = {name for each in made.values() for name in each.dependency}
    return [*_brought(imported - {*made}), *made.values()]


def _named(references: Sequence[tuple[str, str]]) -> dict[str, str]:
    files: dict[str, str] = {}
    for name, text in references:
        parts = name.split("/")
        is_path = all(parts) and not {".", ".."} & {*parts} and name.isprintable()
        if not is_path or "\\" in name or len(name) > 500 or name == MAIN:
            raise UnusableSchemaError(f"{name!r:.100} is not the name of a file that it imports")
        if files.setdefault(name, text) != text:
            raise UnusableSchemaError(f"its references have two files {name:.100}")
    return files


def _in_base64(text: str, name: str) -> Any:  # noqa: ANN401 - a descriptor
    """The descriptor that a text is; None for one that is a schema in protobuf's language."""
    descriptor_pb2 = needed("google.protobuf.descriptor_pb2")
    try:
        raw = base64.b64decode("".join(text.split()), validate=True)
        found = descriptor_pb2.FileDescriptorProto.FromString(raw)
    except (ValueError, needed("google.protobuf.message").DecodeError):
        return None
    if not found.message_type:
        return None
    found.name = name
    return found


def _names_of_brought() -> list[str]:
    parts = "any api duration empty field_mask source_context struct timestamp type wrappers"
    of_type = "calendar_period color date datetime dayofweek decimal expr fraction interval"
    of_type += (
        " latlng localized_text money month phone_number postal_address quaternion timeofday"
    )
    return [
        *(f"google/protobuf/{each}.proto" for each in [*parts.split(), "descriptor"]),
        *(f"google/type/{each}.proto" for each in of_type.split()),
    ]


def _brought(names: Iterable[str]) -> Iterator[Any]:
    """Descriptors of the files that protobuf brings, and of those that they import."""
    descriptor_pb2 = needed("google.protobuf.descriptor_pb2")
    known: dict[str, Any] = {}

    def add(name: str) -> None:
        if name in known or not _BROUGHT.fullmatch(name):
            return
        with contextlib.suppress(ImportError):
            module = __import__(name[: -len(".proto")].replace("/", ".") + "_pb2", fromlist=["x"])
            found = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(found)
            for each in found.dependency:
                add(each)
            known[name] = found

    for each in sorted(names):
        add(each)
    yield from known.values()


def _compiled(texts: dict[str, str], known: Sequence[Any]) -> list[Any]:
    needed("grpc_tools")
    of_files = needed("google.protobuf.descriptor_pb2").FileDescriptorSet
    with tempfile.TemporaryDirectory(prefix="segmentlog-") as name:
        folder = Path(name, "schemas")
        folder.mkdir()
        try:
            for each, text in texts.items():
                path = folder / each
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
        except (OSError, ValueError) as error:
            reason = f"its files cannot be written ({type(error).__name__})"
            raise UnusableSchemaError(reason) from None
        known_path = Path(name, "known")
        known_path.write_bytes(of_files(file=known).SerializeToString())
        arguments = [
            "-I.",
            f"--descriptor_set_in={known_path}",
            "--include_imports",
            "-o/dev/stdout",
            MAIN,
        ]
        try:
            done = subprocess.run(
                [sys.executable, "-c", _COMPILE, *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=2 * _MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnusableSchemaError(f"protoc takes more than {_MOST_SECONDS} s") from None
        if done.returncode:
            told = done.stderr.decode("utf-8", "replace").replace(name, "").replace(MAIN, "line")
            lines = [each for each in told.splitlines() if not _OF_LOG.search(each)]
            reason = " ".join(lines)[:300] or f"protoc ends with the status {done.returncode}"
            raise UnusableSchemaError(f"it is not a schema of protobuf ({reason})")
        return [*of_files.FromString(done.stdout).file]
