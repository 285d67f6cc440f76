"""Where schemas come from: a registry at a URL, a file, a log directory, or their table.

All are the table ``schemas``.  A file is one row of it that has neither an id nor a GUID: it is
the schema of all values.
"""

import base64
import http.client
import json
import os
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, TypeGuard
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import pyarrow as pa

from segmentlog.errors import OptionError, SegmentLogError
from segmentlog.kafka_tables.open_table import table
from segmentlog.kafka_tables.registry import SCHEMAS
from segmentlog.reads.log_directory import LogDirectory
from segmentlog.store.readable import is_file, read_whole

_TYPES_OF_FILES = {".avsc": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}

_SCHEMES = ("http://", "https://")

_MOST_BYTES = 256 << 20  #: that a registry may answer in all
_MOST_SECONDS = 60.0  #: for all answers
_TIMEOUT = 10.0  #: of a connection, and of the next bytes
_N_PAGE = 1_000  #: schemas of an answer, as a registry limits them by default

_NAMES = ("subject", "version", "id", "guid", "schema_type", "schema", "references", "deleted")

#: Errors of an answer that has another form.
_OF_OTHERS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException)


def schemas_of(
    schemas: str | os.PathLike[str] | LogDirectory | pa.Table, subject: str | None
) -> pa.Table:
    """The table ``schemas``; raises `OptionError` for a registry or a file that gives none."""
    if isinstance(schemas, pa.Table):
        return schemas
    if isinstance(schemas, str) and schemas.startswith(_SCHEMES):
        return _Registry(schemas).table(subject or "")
    if is_schema_file(schemas):
        return _of_file(os.fspath(schemas), subject)
    return table(schemas, "schemas")


def is_schema_file(schemas: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether it is a file with a schema."""
    if not isinstance(schemas, (str, os.PathLike)):
        return False
    path = os.fspath(schemas)
    if path.startswith(_SCHEMES):
        return False
    return PurePath(path).suffix in _TYPES_OF_FILES and is_file(path)


def _of_file(path: str, subject: str | None) -> pa.Table:
    def refusal(reason: str) -> SegmentLogError:
        return OptionError("schemas", path, f"the file {reason}")

    try:
        text = read_whole(path, refusal, follow=True).decode()
    except UnicodeDecodeError:
        raise refusal("is not UTF-8") from None
    except OSError as error:
        raise refusal(f"cannot be read ({error.strerror})") from None
    kind = _TYPES_OF_FILES[PurePath(path).suffix]
    row = {
        "subject": subject or PurePath(path).stem,
        "version": 1,
        "schema_type": kind,
        "schema": text,
        "references": [],
        "deleted": False,
    }
    return _as_table([row])


def _as_table(rows: list[dict[str, Any]]) -> pa.Table:
    kinds = {each.name: each.type for each in SCHEMAS.columns}
    return pa.Table.from_pylist(rows, pa.schema([(name, kinds[name]) for name in _NAMES]))


class _Registry:
    """A registry with the interface of Confluent's.  `url`: may have a user and a password.

    Errors name the URL without them.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            host = parts.netloc.rpartition("@")[2]
            user, password = unquote(parts.username or ""), unquote(parts.password or "")
            is_given = bool(parts.hostname) and parts.port != 0
        except ValueError:
            host, is_given = "", False
        if not is_given or parts.query or parts.fragment:
            shown = f"{url.partition(':')[0]}://{host}"
            raise OptionError("schemas", shown, "give an address: https://user:password@host:port")
        self._url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if "@" in parts.netloc:
            words = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {words}"
        self._opener = urllib.request.build_opener(
            _NoRedirect, urllib.request.HTTPSHandler(context=ssl.create_default_context())
        )
        self._n_bytes_left = _MOST_BYTES
        self._end = time.monotonic() + _MOST_SECONDS

    def table(self, subject: str) -> pa.Table:
        """Its schemas; of a registry that does not list them, those of the subject."""
        try:
            found = self._listed()
            return _as_table(self._of_subject(subject) if found is None else found)
        except _OF_OTHERS as error:
            if isinstance(error, OptionError):
                raise
            reason = f"its answer is not that of a schema registry ({type(error).__name__})"
            raise self._refused(reason) from None

    def _listed(self) -> list[dict[str, Any]] | None:
        """All schemas; None if the registry does not list them."""
        newest = self._get("/schemas?latestOnly=true")
        if newest is None:
            return None
        kept = {each["subject"]: each["version"] for each in newest}
        if len(newest) >= _N_PAGE:
            kept |= {each: -1 for each in self._get("/subjects") or () if each not in kept}
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        while True:
            page = self._get(f"/schemas?deleted=true&offset={len(rows)}&limit={_N_PAGE}")
            made = {(each["subject"], each["version"]): each for each in page or ()}
            if not made.keys() - rows.keys():  # the end, or a registry without pages
                break
            rows |= made
        return [
            _row(each, is_deleted=version > kept.get(name, 0) >= 0)
            for (name, version), each in rows.items()
        ]

    def _of_subject(self, subject: str) -> list[dict[str, Any]]:
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        at = f"/subjects/{quote(subject, safe='')}/versions"
        kept = self._get(at) or ()
        todo = [(subject, each) for each in self._get(f"{at}?deleted=true") or kept]
        while todo:
            name, version = place = todo.pop()
            if place in rows:
                continue
            at = f"/subjects/{quote(name, safe='')}/versions/{int(version)}?deleted=true"
            found = self._get(at)
            if found is None:
                continue  # what refers to it says so
            is_deleted = name == subject and version not in kept
            rows[place] = _row(found, is_deleted=is_deleted)
            todo += [(each["subject"], each["version"]) for each in rows[place]["references"]]
        return [*rows.values()]

    def _get(self, at: str) -> Any:  # noqa: ANN401 - JSON
        """An answer; None if there is nothing at this place."""
        request = urllib.request.Request(self._url + at, headers=self._headers)
        try:
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                data = b"".join(self._chunks(answer))
        except HTTPError as error:
            with error:
                if error.code in (404, 405):
                    return None
                reason = "it refuses the user or the password" if error.code in (401, 403) else ""
                raise self._refused(f"{reason or 'it answers'} ({error.code})") from None
        except (URLError, OSError, http.client.HTTPException) as error:
            told = getattr(error, "reason", error)
            raise self._refused(f"it cannot be read ({type(error).__name__}: {told})") from None
        return json.loads(data)

    def _chunks(self, answer: Any) -> Iterator[bytes]:  # noqa: ANN401 - a response of http.client
        while chunk := answer.read1(1 << 16):
            self._n_bytes_left -= len(chunk)
            if self._n_bytes_left < 0:
                raise self._refused(f"it answers more than {_MOST_BYTES} bytes")
            if time.monotonic() > self._end:
                raise self._refused(f"its answers take more than {_MOST_SECONDS:.0f} s")
            yield chunk

    def _refused(self, reason: str) -> OptionError:
        return OptionError("schemas", self._url, reason)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to go elsewhere: the password is for the host that the user has named."""

    def redirect_request(self, *_: object) -> None:
        return None


def _row(found: dict[str, Any], *, is_deleted: bool) -> dict[str, Any]:
    return {
        "subject": found["subject"],
        "version": found["version"],
        "id": found["id"],
        "guid": found.get("guid"),
        "schema_type": found.get("schemaType") or "AVRO",
        "schema": found["schema"],
        "references": found.get("references") or [],
        "deleted": is_deleted,
    }
