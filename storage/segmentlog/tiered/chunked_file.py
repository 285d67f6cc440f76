"""Files of a remote segment, made of the objects that a tier has.

They meet `segmentlog.store.readable.ReadableFile`, so scans, look-ups and indexes read a remote
segment as they read a local one.  The chunks of a `ChunkedFile` are decrypted and inflated as they
are read.  A read fetches the chunks that hold its bytes, chunks next to each other in one request,
and no others.

Each encrypted segment has its own AES key.  The manifest holds this data key, encrypted with the
public key of an RSA key pair (OAEP with SHA3-512, and MGF1 with SHA3-512).  The private key opens
it.  `cryptography` reads private keys and decrypts chunks; it refuses OAEP with SHA3, so that step
is carried out here (RFC 8017, 7.1.2).  Keys and passwords never appear in messages.
"""

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import zstandard

from segmentlog.errors import OptionError, RemoteSegmentError
from segmentlog.store.readable import FileStatus, ReadableFile, read_whole
from segmentlog.store.remote.object_store import KeptRanges
from segmentlog.tiered.aiven_manifest import ChunkIndex, Encryption

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers


_OPTION = "remote_storage_key_file"
_ACCEPTED = (
    "give the PEM file of the private key, or the file of each key pair: key-1=/path/one.pem,"
    "key-2=/path/two.pem"
)
_HASH_BYTES = hashlib.sha3_512().digest_size
_AES_BYTES = 32
_IV_BYTES = 12
_MOST_RSA_BITS = 16384
_MOST_PEM_BYTES = 1 << 20


class Unwrapped:
    """The data key of a segment, which decrypts chunks."""

    def __init__(self, cipher: Any, aad: bytes) -> None:  # noqa: ANN401 - of an optional package
        self._cipher = cipher
        self._aad = aad

    def decrypt(self, chunk: memoryview) -> bytes | None:
        """The bytes of a chunk, or None if its tag does not fit the key and the bytes."""
        from cryptography.exceptions import InvalidTag

        if len(chunk) < _IV_BYTES + 16:
            return None
        try:
            found: bytes = self._cipher.decrypt(chunk[:_IV_BYTES], chunk[_IV_BYTES:], self._aad)
        except InvalidTag:
            return None
        return found


class KeyFiles:
    """Files of private keys; they are read when the first segment needs one.

    `files`: path of the PEM file of each key pair, by its id; the empty id stands for all others.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = dict(files)
        self._read: dict[str, RSAPrivateNumbers] = {}

    def __reduce__(self) -> tuple[type["KeyFiles"], tuple[Mapping[str, str]]]:
        return KeyFiles, (self._files,)  # a task gets the names of the files, and no key

    @classmethod
    def parse(cls, text: str) -> "KeyFiles":
        """The files that an option names: one path, or ``id=path`` pairs with commas between."""
        if "=" not in text:
            return cls({"": text} if text else {})
        files: dict[str, str] = {}
        for pair in text.split(","):
            name, _, path = (each.strip() for each in pair.partition("="))
            if not name or not path or name in files:
                raise OptionError(_OPTION, text, _ACCEPTED)
            files[name] = path
        return cls(files)

    def unwrap(self, path: str, encryption: Encryption) -> Unwrapped:
        pair = encryption.key_pair
        file = self._files.get(pair) or self._files.get("")
        where = f"in {_OPTION} (in Spark remoteStorageKeyFile)"
        if file is None:
            reason = f"the segment is encrypted with the key pair {pair!r}, and no file was given"
            raise RemoteSegmentError(path, reason, f"name the file of its private key {where}")
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            reason = (
                "the segment is encrypted, and the Python package cryptography is not installed"
            )
            remedy = "install pyspark-segmentlog[tiered] on every machine that reads"
            raise RemoteSegmentError(path, reason, remedy) from None
        if file not in self._read:
            self._read[file] = _read_numbers(file)
        key = _unpad(_decrypt(encryption.wrapped, self._read[file]))
        if key is None or len(key) != _AES_BYTES:
            reason = (
                f"its data key was not encrypted for the private key in {file!r}, or is damaged"
            )
            remedy = f"give the private key of the key pair {pair!r} {where}"
            raise RemoteSegmentError(path, reason, remedy)
        return Unwrapped(AESGCM(key), encryption.aad)


def _read_numbers(file: str) -> "RSAPrivateNumbers":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    def refused(reason: str) -> OptionError:
        return OptionError(_OPTION, file, f"the file {reason}; {_ACCEPTED}")

    try:
        pem = read_whole(file, refused, follow=True)
    except OSError as error:
        raise refused(f"cannot be read ({error.strerror})") from None
    if len(pem) > _MOST_PEM_BYTES:
        raise refused(f"has {len(pem)} bytes")
    try:
        key = load_pem_private_key(pem, None, unsafe_skip_rsa_key_validation=True)
    except TypeError:  # it asks for a password
        raise refused("is protected by a password, which the plugin does not support") from None
    except (ValueError, UnsupportedAlgorithm):  # their messages may quote the file
        raise refused("is not a private key in PEM") from None
    if not isinstance(key, RSAPrivateKey) or key.key_size > _MOST_RSA_BITS:
        raise refused("is not an RSA key that the plugin can use")
    return key.private_numbers()


def _decrypt(wrapped: bytes, numbers: "RSAPrivateNumbers") -> bytes | None:
    """The padded message (RFC 8017, 5.1.2), or None if the length is that of another key."""
    modulus = numbers.public_numbers.n
    n_bytes = (modulus.bit_length() + 7) // 8
    cipher = int.from_bytes(wrapped, "big")
    if len(wrapped) != n_bytes or cipher >= modulus or min(numbers.p, numbers.q) < 2:
        return None
    by_p = pow(cipher, numbers.dmp1, numbers.p)
    by_q = pow(cipher, numbers.dmq1, numbers.q)
    message = by_q + numbers.q * ((by_p - by_q) * numbers.iqmp % numbers.p)
    return message.to_bytes(n_bytes, "big")


def _mask(seed: bytes, n_bytes: int) -> bytes:
    """MGF1 with SHA3-512 (RFC 8017, B.2.1)."""
    blocks = range(-(-n_bytes // _HASH_BYTES))
    masks = (hashlib.sha3_512(seed + number.to_bytes(4, "big")).digest() for number in blocks)
    return b"".join(masks)[:n_bytes]


def _exclusive_or(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _unpad(padded: bytes | None) -> bytes | None:
    """The message in OAEP's padding with an empty label, or None if the padding is wrong."""
    if padded is None or len(padded) < 2 * _HASH_BYTES + 2:
        return None
    masked_seed, masked = padded[1 : 1 + _HASH_BYTES], padded[1 + _HASH_BYTES :]
    seed = _exclusive_or(masked_seed, _mask(masked, _HASH_BYTES))
    block = _exclusive_or(masked, _mask(seed, len(masked)))
    label, rest = block[:_HASH_BYTES], block[_HASH_BYTES:]
    message = rest.lstrip(b"\x00")
    is_padding = hmac.compare_digest(label, hashlib.sha3_512().digest())
    if padded[0] or not is_padding or message[:1] != b"\x01":
        return None
    return message[1:]


#: Most bytes of one request outside of a range that is read ahead.
_REQUEST_BYTES = 16 << 20

_REPLACED = "restore the three objects of the segment from one upload"

#: Decoded chunks that a process keeps, by their places: look-ups open a segment several times.
_kept = KeptRanges(64 << 20)


def _forget() -> None:
    global _kept  # noqa: PLW0603 - another thread may have held its lock
    _kept = KeptRanges(64 << 20)


os.register_at_fork(after_in_child=_forget)


class _ObjectFile(ReadableFile):
    """What the files have in common: the bytes of the object are not those of the file."""

    never_cut = True  # objects of a tier are written once, and neither file is mapped

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self.path = file.path

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def close(self) -> None:
        self._file.close()


class SectionFile(_ObjectFile):
    """A range of an open object as a file of its own.

    `size`: bytes of the range, or -1 for all of the object from `start` on.  `inode`: of the file,
    if it is a file of a segment, whose batches end where the next segment begins.
    """

    def __init__(
        self, file: ReadableFile, start: int = 0, size: int = -1, inode: int | None = None
    ) -> None:
        super().__init__(file)
        self._start, self._size, self._inode = start, size, inode
        self.never_overlaps = inode is not None

    @property
    def descriptor(self) -> int | None:
        """See `ReadableFile`; a planned read does not go beyond the bytes of the log."""
        return None if self._start else self._file.descriptor

    def _left(self, position: int, n_bytes: int) -> int:
        return n_bytes if self._size < 0 else max(0, min(n_bytes, self._size - position))

    def status(self) -> FileStatus:
        """See `ReadableFile`: that of the object, with the size of the range."""
        found = self._file.status()
        found = found._replace(size=self._left(0, found.size - self._start))
        return found if self._inode is None else found._replace(inode=self._inode)

    def read(self, position: int, n_bytes: int) -> bytes:
        return self._file.read(self._start + position, self._left(position, n_bytes))

    def read_into(self, buffer: memoryview, position: int) -> int:
        n_bytes = self._left(position, len(buffer))
        return self._file.read_into(buffer[:n_bytes], self._start + position) if n_bytes else 0

    def expect(self, start: int, end: int) -> None:
        self._file.expect(self._start + start, self._start + self._left(0, end))

    def spare_page_cache(self, start: int, end: int) -> None:
        self._file.spare_page_cache(self._start + start, self._start + end)


class ChunkedFile(_ObjectFile):
    """An open object whose chunks are compressed, encrypted, or both.

    `is_compressed`: whether each chunk is a zstd frame.  `key`: decrypts the chunks, or None.
    `is_whole`: whether the chunks are all of the object.
    """

    def __init__(
        self,
        file: ReadableFile,
        chunks: ChunkIndex,
        *,
        is_compressed: bool,
        key: Unwrapped | None,
        is_whole: bool = True,
    ) -> None:
        super().__init__(file)
        self._chunks = chunks
        self._is_compressed = is_compressed
        self._key = key
        self._last: tuple[int, bytes] = -1, b""
        self._ahead = range(0)  # chunks that are requested ahead
        self._shared = -1  # chunk that the range before this one ends in
        self._found = file.status()
        self._name = f"{file.path}:{self._found.inode}:{chunks.place(0)}"  # of its kept chunks
        end = chunks.place(chunks.n_chunks)
        if self._found.size < end or (is_whole and self._found.size != end):
            file.close()
            found = self._found.size
            raise self._damage(f"the object has {found} bytes, and its manifest describes {end}")

    def _damage(self, reason: str) -> RemoteSegmentError:
        return RemoteSegmentError(self.path, reason, _REPLACED)

    def status(self) -> FileStatus:
        """See `ReadableFile`: that of the object, with the size of the file."""
        return self._found._replace(size=self._chunks.file_bytes)

    def expect(self, start: int, end: int) -> None:
        """See `ReadableFile`: the chunks with these bytes are requested ahead.

        Two ranges of one scan may meet inside a chunk.  The reader of the later range needs this
        chunk first, and keeps it for the reader of the earlier range, which needs it last and
        does not request it ahead.
        """
        chunks = self._chunks
        end = min(end, chunks.file_bytes)
        if start >= end:
            return
        begin, stop = chunks.number_at(start), chunks.number_at(end - 1) + 1
        if end % chunks.chunk_bytes and end < chunks.file_bytes:
            stop -= 1
        if start % chunks.chunk_bytes:
            self._shared = begin
        while begin < stop and self._find(begin) is not None:
            begin += 1
        while begin < stop and self._find(stop - 1) is not None:
            stop -= 1
        self._ahead = range(begin, stop)
        if self._ahead:
            self._file.expect(chunks.place(begin), chunks.place(stop))

    def read(self, position: int, n_bytes: int) -> bytes:
        buffer = bytearray(max(0, min(n_bytes, self._chunks.file_bytes - position)))
        n_read = self.read_into(memoryview(buffer), position)
        return bytes(buffer[:n_read])

    def read_into(self, buffer: memoryview, position: int) -> int:
        chunks = self._chunks
        end = min(position + len(buffer), chunks.file_bytes)
        at = position
        while at < end:
            number = chunks.number_at(at)
            chunk = self._chunk(number, chunks.number_at(end - 1))
            begin = at - number * chunks.chunk_bytes
            n_bytes = min(len(chunk) - begin, end - at)
            target = buffer[at - position : at - position + n_bytes]
            target[:] = memoryview(chunk)[begin : begin + n_bytes]
            at += n_bytes
        return max(at - position, 0)

    def _chunk(self, number: int, last: int) -> bytes:
        """A decoded chunk; those after it, up to `last`, are fetched with it."""
        if self._last[0] == number:
            return self._last[1]
        if number in self._ahead:
            chunk = self._decode(number, self._fetch(number, number))
            if number == self._shared:
                self._keep(number, chunk)
        else:
            found = self._find(number)
            chunk = self._fetch_run(number, last) if found is None else found
        self._last = number, chunk
        return chunk

    def _find(self, number: int) -> bytes | None:
        chunks = self._chunks
        return _kept.find(self._name, number * chunks.chunk_bytes, chunks.size_of(number))

    def _keep(self, number: int, chunk: bytes) -> None:
        _kept.keep(self._name, number * self._chunks.chunk_bytes, chunk)

    def _fetch_run(self, number: int, last: int) -> bytes:
        """Fetch chunks from one that is not kept up to the next that is, in one request."""
        chunks, end = self._chunks, number
        while (
            end < last
            and end + 1 not in self._ahead
            and self._find(end + 1) is None
            and chunks.place(end + 2) - chunks.place(number) <= _REQUEST_BYTES
        ):
            end += 1
        fetched = self._fetch(number, end)
        begin = chunks.place(number)
        first = b""
        for each in range(number, end + 1):
            piece = fetched[chunks.place(each) - begin : chunks.place(each + 1) - begin]
            chunk = self._decode(each, piece)
            self._keep(each, chunk)
            first = first or chunk
        return first

    def _fetch(self, first: int, last: int) -> memoryview:
        begin, end = self._chunks.place(first), self._chunks.place(last + 1)
        buffer = memoryview(bytearray(end - begin))
        n_read = 0
        while n_read < len(buffer):
            n_more = self._file.read_into(buffer[n_read:], begin + n_read)
            if not n_more:
                at = begin + n_read
                raise self._damage(f"the object ends at byte {at}, in its chunk {last}")
            n_read += n_more
        return buffer

    def _decode(self, number: int, piece: memoryview) -> bytes:
        chunk: bytes | memoryview = piece
        if self._key is not None:
            decrypted = self._key.decrypt(piece)
            if decrypted is None:
                reason = (
                    f"the tag of its chunk {number} does not fit: the object was damaged or "
                    "replaced, or is not the object of this manifest"
                )
                raise self._damage(reason)
            chunk = decrypted
        size = self._chunks.size_of(number)
        inflated = _inflate(chunk, size) if self._is_compressed else bytes(chunk)
        if inflated is None or len(inflated) != size:
            raise self._damage(f"its chunk {number} is not a zstd frame of {size} bytes")
        return inflated


def _inflate(chunk: bytes | memoryview, size: int) -> bytes | None:
    """The bytes of one zstd frame, or None if it is damaged or inflates to another size."""
    try:
        claimed = zstandard.get_frame_parameters(chunk).content_size
        if claimed not in (size, zstandard.CONTENTSIZE_UNKNOWN):
            return None
        return zstandard.ZstdDecompressor().decompress(
            chunk, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError:
        return None
