"""Keys of segments that Aiven's plugin has encrypted, and their chunks.

Each segment has its own AES key.  The manifest holds this data key, encrypted with the public key
of an RSA key pair (OAEP with SHA3-512, and MGF1 with SHA3-512).  The private key opens it.
`cryptography` reads private keys and decrypts chunks; it refuses OAEP with SHA3, so that step is
carried out here (RFC 8017, 7.1.2).  Keys and passwords never appear in messages.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from segmentlog.errors import OptionError, RemoteSegmentError
from segmentlog.store.readable import read_whole

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


class Encryption(NamedTuple):
    """How a segment is encrypted, as its manifest says."""

    key_pair: str  # id of the RSA key pair
    wrapped: bytes  # data key, encrypted
    aad: bytes  # bytes that each chunk is bound to


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
