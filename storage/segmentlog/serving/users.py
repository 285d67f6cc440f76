"""Who may read from another machine: TLS, and SASL PLAIN with hashed passwords in a file."""

import base64
import hashlib
import hmac
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from segmentlog.errors import LogDirectoryError, OptionError
from segmentlog.serving.wire import MalformedRequestError, read_request
from segmentlog.store.readable import read_whole

_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_UNSUPPORTED_MECHANISM, _AUTHENTICATION_FAILED = 33, 58
_N, _R, _P = 1 << 14, 8, 1  # of scrypt: 16 MiB and about 50 ms for a password

_MADE_BY = "segmentlog serve --hash-user NAME makes one"

Users = Mapping[str, tuple[bytes, bytes]]  # salt and hash of the password, by name


def hashed_user(name: str, password: str) -> str:
    """The line of a file of users for a name and a password."""
    if not name or ":" in name or "\0" in name or name != name.strip():
        raise OptionError("user", name, "give a name without colons and outer spaces")
    salt = os.urandom(16)
    return f"{name}:{_text(salt)}:{_text(_hash(password, salt))}"


def read_users(path: str) -> Users:
    """The users of a file that `hashed_user` has made, line by line; # begins a comment."""
    found: dict[str, tuple[bytes, bytes]] = {}
    data = read_whole(path, lambda reason: LogDirectoryError(path, reason), follow=True)
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, salt, key = line.strip().split(":")
            found[name] = base64.b64decode(salt), base64.b64decode(key)
        except ValueError:
            reason = f"line {number} is not a user; {_MADE_BY}"
            raise LogDirectoryError(path, reason) from None
    if not found:
        raise LogDirectoryError(path, f"it has no user; {_MADE_BY}")
    return found


def tls_context(certificate: str, key: str | None) -> ssl.SSLContext:
    """What the server shows to clients; raises `OptionError` if it cannot be read."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        accepted = f"it and its key cannot be read: {error}"
        raise OptionError("tls_certificate", certificate, accepted) from error
    return context


class Login:
    """The login of one connection; `user` is None until it has succeeded."""

    #: What is announced beside all other APIs.
    apis = (
        {"api_key": _SASL_HANDSHAKE, "min_version": 0, "max_version": 1},
        {"api_key": _SASL_AUTHENTICATE, "min_version": 0, "max_version": 2},
    )

    def __init__(self, users: Users) -> None:
        self._users = users
        self.user: str | None = None
        self._has_agreed = False

    async def answer(
        self,
        key: int,
        version: int,
        frame: bytes,
        log_in: Callable[..., Awaitable[bytes]],
    ) -> dict[str, Any] | None:
        """The answer to a step of a login; None if the request is none.

        Raises `MalformedRequestError` if it is not one that may come now.
        """
        if key == _SASL_HANDSHAKE and version == 1:
            mechanism = read_request(frame).body.mechanism
            self._has_agreed = mechanism == "PLAIN"
            code = 0 if self._has_agreed else _UNSUPPORTED_MECHANISM
            return {"error_code": code, "mechanisms": ["PLAIN"]}
        if key == _SASL_HANDSHAKE:
            raise MalformedRequestError("a login without a Kafka frame for each step is too old")
        if key != _SASL_AUTHENTICATE:
            return None
        if not self._has_agreed or version > 2:
            raise MalformedRequestError("the mechanism of a login is agreed upon first")
        parts = bytes(read_request(frame).body.auth_bytes).split(b"\0")
        name = parts[1].decode(errors="replace") if len(parts) == 3 else ""
        salt, expected = self._users.get(name, (b"no such user", b""))
        found = await log_in(_hash, parts[-1].decode(errors="replace"), salt)
        if name not in self._users or not hmac.compare_digest(found, expected):
            return {
                "error_code": _AUTHENTICATION_FAILED,
                "auth_bytes": b"",
                "error_message": "the name or the password is wrong",
            }
        self.user = name
        return {"error_code": 0, "auth_bytes": b""}


def _hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P, maxmem=64 << 20)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
