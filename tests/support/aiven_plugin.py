"""Write segments as Aiven's plugin ``io.aiven.kafka.tieredstorage`` does, in all of its forms.

It follows the plugin's classes, and shares no code with the reader: the plugin itself is not
published where the tests could fetch it.
"""

import base64
import functools
import hashlib
import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from segmentlog.testing.legacy import split_batches

_INDEXES = {
    "offset": ".index",
    "timestamp": ".timeindex",
    "producerSnapshot": ".snapshot",
    "leaderEpoch": "",
    "transaction": ".txnindex",
}


def new_id() -> str:
    """A random id in the base64 of Kafka's ``Uuid``."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")


@functools.cache
def _usual_key() -> rsa.RSAPrivateKey:
    """It takes a tenth of a second to find one."""
    return rsa.generate_private_key(65537, 2048)


class KeyPair:
    """An RSA key pair, and the file of its private key.

    `bits`: of a new key; without it, all pairs of this process have the same.
    """

    def __init__(self, directory: Path, name: str = "key-1", bits: int = 0) -> None:
        self.name = name
        self.file = directory / f"{name}.pem"
        self._key = rsa.generate_private_key(65537, bits) if bits else _usual_key()
        self.file.write_bytes(
            self._key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def wrap(self, data_key: bytes) -> str:
        """RSA-OAEP with SHA3-512 and MGF1 of SHA3-512, as text of a manifest."""
        numbers = self._key.public_key().public_numbers()
        n_bytes = (numbers.n.bit_length() + 7) // 8
        hash_bytes = 64
        block = hashlib.sha3_512(b"").digest()
        block += bytes(n_bytes - len(data_key) - 2 * hash_bytes - 2) + b"\x01" + data_key
        seed = os.urandom(hash_bytes)
        masked = _xor(block, _mgf1(seed, len(block)))
        padded = b"\0" + _xor(seed, _mgf1(masked, hash_bytes)) + masked
        cipher = pow(int.from_bytes(padded, "big"), numbers.e, numbers.n)
        return f"{self.name}:{base64.b64encode(cipher.to_bytes(n_bytes, 'big')).decode()}"


def _mgf1(seed: bytes, n_bytes: int) -> bytes:
    found, counter = b"", 0
    while len(found) < n_bytes:
        found += hashlib.sha3_512(seed + struct.pack(">I", counter)).digest()
        counter += 1
    return found[:n_bytes]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def encode_sizes(sizes: list[int]) -> str:
    """The list of sizes of a variable chunk index (``ChunkSizesBinaryCodec``)."""
    listed = struct.pack(">i", len(sizes))
    if len(sizes) == 1:
        listed += struct.pack(">i", sizes[0])
    elif sizes:
        base = min(sizes[:-1])
        width = max(1, (max(sizes[:-1]) - base).bit_length() + 7 >> 3)
        listed += struct.pack(">iB", base, width)
        listed += b"".join((each - base).to_bytes(width, "big") for each in sizes[:-1])
        listed += struct.pack(">i", sizes[-1])
    return base64.b64encode(zstandard.ZstdCompressor().compress(listed)).decode()


def custom_metadata(size: int | None, prefix: str | None, key: str | None) -> bytes:
    """The plugin's custom metadata (``SegmentCustomMetadataSerde``) with those that are given."""

    def varint(number: int) -> bytes:
        found = b""
        while number >= 0x80:
            found += bytes([number & 0x7F | 0x80])
            number >>= 7
        return found + bytes([number])

    fields = [] if size is None else [(0, varint(size << 1))]
    for tag, text in ((1, prefix), (2, key)):
        if text is not None:
            fields.append((tag, varint(len(text.encode()) + 1) + text.encode()))
    return varint(len(fields)) + b"".join(
        varint(tag) + varint(len(field)) + field for tag, field in fields
    )


@dataclass
class AivenPlugin:
    """Settings of the plugin, and the directory of its objects."""

    root: Path  # directory of the objects
    prefix: str = ""  # ``key.prefix``
    chunk_bytes: int = 4096  # ``chunk.size``
    compresses: bool = False  # ``compression.enabled``
    keys: KeyPair | None = None  # the key pair of ``encryption.enabled``, or None

    def copy_partition(
        self, partition: Path, topic_id: str, *, with_last: bool = False
    ) -> list[str]:
        """Copy closed segments of a partition's directory, as its leader does.

        Returns `keys`: of the segments without suffix, in the order of their offsets.
        """
        bases = sorted(int(each.stem) for each in partition.glob("*.log"))
        ends = [*bases[1:], self._end_offset(partition, bases[-1])]
        copied = list(zip(bases, ends, strict=True))
        return [
            self.copy_segment(partition, topic_id, base, end - 1)
            for base, end in (copied if with_last else copied[:-1])
        ]

    @staticmethod
    def _end_offset(partition: Path, base: int) -> int:
        data = (partition / f"{base:020}.log").read_bytes()
        end = 0
        for batch, _ in split_batches(data):
            end = struct.unpack_from(">q", batch)[0] + struct.unpack_from(">i", batch, 23)[0] + 1
        return end

    def copy_segment(self, partition: Path, topic_id: str, base: int, end: int) -> str:
        """Copy a segment; returns its key without suffix."""
        topic, _, number = partition.name.rpartition("-")
        segment_id = new_id()
        main = f"{topic}-{topic_id}/{number}/{base:020}-{segment_id}"
        data = (partition / f"{base:020}.log").read_bytes()
        data_key, aad = os.urandom(32), os.urandom(32)
        seal = AESGCM(data_key) if self.keys else None

        def sealed(piece: bytes) -> bytes:
            if seal is None:
                return piece
            vector = os.urandom(12)
            return vector + seal.encrypt(vector, piece, aad)

        pieces = [data[at : at + self.chunk_bytes] for at in range(0, len(data), self.chunk_bytes)]
        if self.compresses:
            pieces = [zstandard.ZstdCompressor().compress(piece) for piece in pieces]
        pieces = [sealed(piece) for piece in pieces]
        epochs = self._epochs(partition, end)
        listed = "".join(f"{epoch} {first}\n" for epoch, first in epochs.items())
        stored = b""
        places: dict[str, dict[str, int] | None] = {}
        for name, suffix in _INDEXES.items():
            at = end + 1 if name == "producerSnapshot" else base
            path = partition / f"{at:020}{suffix}"
            if name == "leaderEpoch":
                index = f"0\n{len(epochs)}\n{listed}".encode()
            elif path.exists() or name != "transaction":
                index = path.read_bytes() if path.exists() else b""
            else:
                places[name] = None
                continue
            index = sealed(index) if index else b""
            places[name] = {"position": len(stored), "size": len(index)}
            stored += index
        self._put(main, ".log", b"".join(pieces))
        self._put(main, ".indexes", stored)
        manifest: dict[str, Any] = {
            "version": "1",
            "chunkIndex": self._chunk_index(data, [len(each) for each in pieces]),
            "segmentIndexes": places,
            "compression": self.compresses,
        }
        if self.keys:
            manifest["encryption"] = {
                "dataKey": self.keys.wrap(data_key),
                "aad": base64.b64encode(aad).decode(),
            }
        in_segment = self._clipped(epochs, base, end)
        manifest["remoteLogSegmentMetadata"] = {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": topic_id,
                    "topicPartition": {"topic": topic, "partition": int(number)},
                },
                "id": segment_id,
            },
            "startOffset": base,
            "endOffset": end,
            "maxTimestampMs": max(
                struct.unpack_from(">q", batch, 35)[0] for batch, _ in split_batches(data)
            ),
            "brokerId": 1,
            "eventTimestampMs": 1_700_000_000_000,
            "segmentLeaderEpochs": {str(each): first for each, first in in_segment.items()},
            "txnIdxEmpty": places["transaction"] is None,
        }
        self._put(main, ".rsm-manifest", json.dumps(manifest, separators=(",", ":")).encode())
        return main

    def path(self, main: str, suffix: str) -> Path:
        """Path of an object."""
        return Path(f"{self.root}/{self.prefix}{main}{suffix}")

    def _put(self, main: str, suffix: str, data: bytes) -> None:
        path = self.path(main, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _chunk_index(self, data: bytes, sizes: list[int]) -> dict[str, Any]:
        index: dict[str, Any] = {
            "type": "variable" if self.compresses else "fixed",
            "originalChunkSize": self.chunk_bytes,
            "originalFileSize": len(data),
        }
        if self.compresses:
            return index | {"transformedChunks": encode_sizes(sizes)}
        return index | {
            "transformedChunkSize": self.chunk_bytes + (28 if self.keys else 0),
            "finalTransformedChunkSize": sizes[-1],
        }

    @staticmethod
    def _epochs(partition: Path, end: int) -> dict[int, int]:
        path = partition / "leader-epoch-checkpoint"
        lines = path.read_text().splitlines()[2:] if path.exists() else ["0 0"]
        listed = (map(int, line.split()) for line in lines)
        return {epoch: first for epoch, first in listed if first <= end}

    @staticmethod
    def _clipped(epochs: dict[int, int], base: int, end: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for epoch, first in epochs.items():
            if first <= base:
                found = {epoch: base}
            elif first <= end:
                found[epoch] = first
        return found
