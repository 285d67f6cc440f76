"""URLs of log directories in object stores, as paths that name one file each.

A URL holds options after its path: ``s3://bucket/kafka?endpoint_override=http://minio:9000``.  A
path has to end with the name of its file, so that names can be joined to it and cut off from it::

    s3://bucket;endpoint_override=http:%2F%2Fminio:9000/kafka/orders-0/00000000000000000000.log

Credentials never appear in a path, because paths appear in messages.  A path has a short digest of
them instead, and this process remembers them by the digest.  A process that is handed such a path
has to be handed the URL as well (`readable_path`).  Credentials of the environment leave no
digest, and need no URL.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from segmentlog.errors import LogDirectoryError

#: Options that are shown in paths; any other may hold a password or a token.
_SHOWN = {
    "scheme", "region", "endpoint_override", "anonymous", "allow_bucket_creation",
    "allow_bucket_deletion", "force_virtual_addressing", "role_arn", "project_id",
    "enable_tls", "replication", "buffer_size", "blob_storage_authority", "dfs_storage_authority",
    "account_name", "tenant_id", "retry_limit_seconds", "profile", "request_payer", "session_name",
}  # fmt: skip

#: Names that Hadoop has for the same store.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}

#: Schemes whose URLs may begin with a path.
_WITHOUT_HOST = {"hdfs", "viewfs", "memory"}

#: Schemes whose URLs name a bucket.
_WITHOUT_PORT = {"s3", "gs"}

_DIGEST = "credentials"

#: What stands before the first slash of a path that was made here, if it has options.
_MADE = re.compile(rf"([^:;@]*@)?[^:;@]*(:\d+)?(;({'|'.join(sorted(_SHOWN))}|{_DIGEST})=[^;@]*)+")
_OF_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)

#: Secrets that a digest replaces: user, password, and options that are not shown.
_secrets: "dict[str, _Secrets]" = {}


class _Secrets(NamedTuple):
    user: str
    password: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return "_Secrets(…)"


class Location(NamedTuple):
    """The parts of a path at a URL."""

    scheme: str  # in lower case, such as ``s3``
    root: str  # beginning of the path, up to the first slash of its key
    host: str  # bucket, account or server; with a port if there is one
    #: empty without
    user: str
    password: str
    options: Mapping[str, str]  # of the URL, those that are not shown too
    key: str  # path below the root, without a slash at either end

    def __repr__(self) -> str:
        return f"Location(root={self.root!r}, key={self.key!r})"


def path_of_url(url: str) -> str:
    """The path for a URL that a user gives; a path that was made here stays as it is.

    Raises `LogDirectoryError` if the URL names no bucket or server; if its credentials are not
    quoted.
    """
    scheme, _, rest = url.partition("://")
    scheme = _ALIASES.get(scheme.lower(), scheme.lower())
    before, question, query = rest.partition("?")
    authority, _, key = before.partition("/")
    userinfo, at, host = authority.rpartition("@")
    # Made here; the path of a virtual disk has no credentials.
    is_of_bucket = scheme.startswith("bucket+") and (";prefix=" in authority or not authority)
    if scheme == "tiered" or is_of_bucket or _MADE.fullmatch(authority):
        return url.rstrip("/")
    _, colon, port = host.partition(":")
    # A slash in credentials cuts them off, and their beginning looks like a host.
    is_cut = ";" in host or (colon and (scheme in _WITHOUT_PORT or not port.isdecimal()))
    if is_cut or (":" in userinfo and "@" in query.partition("=")[0]):
        reason = (
            "the credentials of the URL contain a character that ends them: write %2F for /, %3F "
            "for ?, %3B for ; and %40 for @, or leave them out of the URL and give them in the "
            "environment"
        )
        raise LogDirectoryError(f"{scheme}://…", reason)
    if not host and scheme not in _WITHOUT_HOST:
        shown = f"{scheme}://{'…@' * bool(at)}/{key}"
        raise LogDirectoryError(shown, f"the URL contains no bucket; write {scheme}://bucket/path")
    given = dict(parse_qsl(query, keep_blank_values=True)) if question else {}
    user, _, password = (unquote(part) for part in userinfo.partition(":"))
    options = [f"{name}={quote(value, ':')}" for name, value in given.items() if name in _SHOWN]
    hidden = {name: value for name, value in given.items() if name not in _SHOWN}
    is_secret = bool(password or hidden)
    if is_secret:
        secrets = _Secrets(user, password, hidden)
        digest = hashlib.sha256(repr(tuple(secrets)).encode()).hexdigest()[:8]
        _secrets[digest] = secrets
        options.append(f"{_DIGEST}={digest}")
    shown_user = f"{quote(user)}@" if user and not is_secret else ""
    root = ";".join([f"{scheme}://{shown_user}{host}", *options])
    key = unquote(key).strip("/")
    return f"{root}/{key}" if key else root


def location_of(path: str) -> Location:
    """The parts of a path that `path_of_url` has made, or names joined to one."""
    scheme, _, rest = path.partition("://")
    authority, _, key = rest.partition("/")
    server, *given = authority.split(";")
    options = {name: unquote(value) for name, _, value in (each.partition("=") for each in given)}
    user, _, host = server.rpartition("@")
    user, password = unquote(user), ""
    digest = options.pop(_DIGEST, None)
    if digest is not None:
        if digest not in _secrets:
            reason = (
                "its URL had credentials, and this process was not given them; leave them out of "
                "the URL and give them in the environment, or open the URL in this process first"
            )
            raise LogDirectoryError(path, reason)
        user, password, hidden = _secrets[digest]
        options |= hidden
    root = f"{scheme}://{authority}"
    return Location(scheme, root, host, user, password, options, key.strip("/"))


def number_of(name: str, value: str) -> float:
    """The number that is given as an option; raises `ValueError`, which names the option."""
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name} is {value!r}: give a number") from None


def with_slashes(endpoint: str) -> str:
    """The URL of a server; Spark's catalog keeps one slash of several."""
    return re.sub(r"^(https?):/+", r"\1://", endpoint)


#: Options as other programs call them, and their names here.
_OTHER_NAMES = {
    "endpoint": "endpoint_override", "endpoint_url": "endpoint_override",
    "endpointoverride": "endpoint_override", "host": "endpoint_override",
    "region_name": "region", "default_region": "region", "access_key_id": "access_key",
    "key": "access_key", "accesskey": "access_key", "secret_access_key": "secret_key",
    "secret": "secret_key", "secretkey": "secret_key", "token": "session_token",
    "security_token": "session_token", "profile_name": "profile", "anon": "anonymous",
    "skip_signature": "anonymous", "no_sign_request": "anonymous", "allow_http": "scheme",
    "use_ssl": "scheme", "requester_pays": "request_payer", "role": "role_arn",
    "virtual_hosted_style_request": "force_virtual_addressing", "account": "account_name",
    "sas": "sas_token", "sas_key": "sas_token", "storage_account": "account_name",
    "credentials": "service_account_key", "base_url": "endpoint_override",
}  # fmt: skip
_OF_SCHEMES = {
    "s3": (
        "endpoint_override", "region", "scheme", "access_key", "secret_key", "session_token",
        "profile", "role_arn", "session_name", "external_id", "anonymous", "request_payer",
        "force_virtual_addressing", "request_timeout", "connect_timeout", "proxy_options",
    ),
    "gs": (
        "endpoint_override", "scheme", "anonymous", "access_token", "service_account_key",
        "project_id",
    ),
    "abfs": (
        "account_name", "account_key", "sas_token", "client_id", "client_secret", "tenant_id",
        "blob_storage_authority", "dfs_storage_authority", "enable_tls", "anonymous",
    ),
}  # fmt: skip


def unknown_options(scheme: str, names: Iterable[str]) -> str:
    """The sentence about options of a URL that are not known, with the right names of some."""
    known = _OF_SCHEMES["abfs" if scheme == "az" else scheme]
    told = []
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        plain = re.sub(r"^(fs_s3a_|s3_|aws_|azure_storage_|azure_|google_|gcs_)", "", plain)
        right = _OTHER_NAMES.get(plain, plain)
        near = [right] if right in known else get_close_matches(plain, known, 1)
        told.append(f"{name} (write {near[0]})" if near else name)
    return f"these options are unknown here: {', '.join(told)}; the options are {', '.join(known)}"


def without_options(path: str) -> str:
    """A path without options: the way in which a user knows the place."""
    scheme, sign, rest = path.partition("://")
    authority, slash, key = rest.partition("/")
    return f"{scheme}{sign}{authority.partition(';')[0]}{slash}{key}"


def without_secrets(text: str) -> str:
    """A message of a store, with known credentials left out."""
    values = [os.environ.get(name, "") for name in _OF_ENVIRONMENT]
    for secrets in _secrets.values():
        values += [secrets.user, secrets.password, *secrets.options.values()]
    values += [quote(value, "") for value in values]  # as stores get them in URLs
    for value in sorted(values, key=len, reverse=True):
        if len(value) > 3:
            text = text.replace(value, "…")
    return text
