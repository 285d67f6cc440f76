"""Deletes of rows in Iceberg tables, as engines with merge-on-read write them."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_MAGIC = 1681511377  # of a bitmap in a deletion vector


def local(url: str) -> Path:
    """The path of a file or a directory of a table."""
    return Path(url.removeprefix("file://"))


def data_files(table: Any) -> list[str]:
    """The URLs of the files with rows."""
    return [each.file.file_path for each in table.scan().plan_files()]


def add_deletes(table: Any, path: Path, form: str, *, equality_ids: Sequence[int] = ()) -> None:
    """Let the current snapshot of a table have a file with deletes.

    `form`: ``PARQUET``, ``AVRO`` or ``PUFFIN``.  `equality_ids`: of the columns, if the file has
    values of rows that are deleted, and not their places.
    """
    from pyiceberg import manifest
    from pyiceberg.typedef import Record

    class DeleteManifestWriter(manifest.ManifestWriterV2):
        def content(self) -> manifest.ManifestContent:
            return manifest.ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    contents = manifest.DataFileContent
    content = contents.EQUALITY_DELETES if equality_ids else contents.POSITION_DELETES
    file = manifest.DataFile.from_args(
        content=content,
        file_path=path.as_uri(),
        file_format=manifest.FileFormat(form),
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
        spec_id=0,
        sort_order_id=None,
        equality_ids=[*equality_ids] or None,
    )
    snapshot = table.current_snapshot()
    whole = local(snapshot.manifest_list)
    within = whole.parent / f"deletes-{path.name}.avro"
    writer = DeleteManifestWriter(
        table.spec(),
        table.schema(),
        table.io.new_output(within.as_uri()),
        snapshot.snapshot_id,
        "null",
    )
    with writer:
        writer.add_entry(
            manifest.ManifestEntry.from_args(
                status=manifest.ManifestEntryStatus.ADDED,
                snapshot_id=snapshot.snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
        )
    known = snapshot.manifests(table.io)
    rewritten = whole.with_suffix(".new")
    with manifest.write_manifest_list(
        2,
        table.io.new_output(rewritten.as_uri()),
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        snapshot.sequence_number,
        "null",
    ) as listed:
        listed.add_manifests([*known, writer.to_manifest_file()])
    rewritten.rename(whole)


def delete_by_positions(table: Any, positions: Mapping[str, Sequence[int]]) -> None:
    """Delete rows by their places in files, with a Parquet file."""
    path = local(table.location()) / "data" / "deletes.parquet"
    places = [(file, each) for file, found in positions.items() for each in found]
    files, rows = zip(*places, strict=True) if places else ((), ())
    columns = {"file_path": pa.array(files, pa.string()), "pos": pa.array(rows, pa.int64())}
    pq.write_table(pa.table(columns), path)
    add_deletes(table, path, "PARQUET")


def delete_by_vectors(table: Any, positions: Mapping[str, Sequence[int]]) -> None:
    """Delete rows by deletion vectors, in one Puffin file; the table is of version 3 from then on.

    Its metadata file is rewritten, so the table must be opened again.
    """
    import pyroaring

    path = local(table.location()) / "data" / "deletes.puffin"
    data, blobs = b"PFA1", []
    for file, found in positions.items():
        bits = pyroaring.BitMap(found).serialize()
        body = struct.pack("<IqI", _MAGIC, 1, 0) + bits
        blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
        properties = {"referenced-data-file": file, "cardinality": str(len(found))}
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(data),
                "length": len(blob),
                "properties": properties,
            }
        )
        data += blob
    footer = json.dumps({"blobs": blobs}).encode()
    path.write_bytes(data + b"PFA1" + footer + struct.pack("<ii", len(footer), 0) + b"PFA1")
    add_deletes(table, path, "PUFFIN")
    metadata_path = local(table.metadata_location)
    metadata = json.loads(metadata_path.read_text())
    metadata |= {"format-version": 3, "next-row-id": 1000}
    for each in metadata["snapshots"]:
        each |= {"first-row-id": 0, "added-rows": 1000}
    metadata_path.write_text(json.dumps(metadata))
