"""Secrets by the names of settings and by the forms of values, hidden wherever text is shown.

Names show most secrets.  Some stand within other values: in the user of a URL, in a parameter of a
connection, in a header.  It does no harm to hide too much.

A path of a log in an object store holds the options of its URL, and is shown as the URL alone.

Each process imports this module and few hide anything, so `re` compiles the patterns when they are
first used, and keeps them.
"""

import re
from urllib.parse import unquote

#: Shown in place of a secret, as by Kafka (``Password.HIDDEN``).
MASK = "[hidden]"

_KEYS = "api|access|account|auth|encryption|license|master|private|sas|shared|signing"

#: Columns and fields of records, which connectors name in their settings.
_OF_RECORDS = "".join(
    f"(?<!{each})"
    for each in ("public", "primary", "partition", "message", "record", "row", "sort", "foreign",
                 "routing", "unique", "group")
)  # fmt: skip

#: Names of settings of Kafka's type ``PASSWORD``, and of plugins that name theirs like them.
_SENSITIVE = (
    r"(?i)password|passphrase|passcode|passwd|[._-]pass$|(?-i:[a-z]P)ass$|pwd$|secret|"
    r"credential(?!s\.source$)|user\.?info|jaas\.?config|"
    rf"(?<!public)\.key$|{_OF_RECORDS}[_-]key$|(?:{_KEYS})[._-]?key|"
    r"certificate\.chain|truststore\.certificates|token$|token[._-]?value|bearer|authorization|"
    r"cookie$|connection[._-]?str(?:ing)?$|shared[._-]?access|[._-]sas$|webhook|"
    r"(?:^|[._-])(?:dsn|license)$"
)

#: The beginning of a URL, up to its user; bounded, because values may be crafted.
_SCHEME = r"(?i)(?<![a-z0-9+.-])(?:[a-z][a-z0-9+.-]{0,40}:/{1,3}|jdbc:oracle:\w{1,20}:)"

#: A parameter or a header with such a name, in a URL, a connection string, JAAS or JSON.
_PARAMETER = (
    r"(?i)((?<![\w.-])[\w.-]{0,100}?"
    r"(?:password|passphrase|passwd|pwd|secret|token|credential|authorization|"
    rf"(?:{_KEYS})[._-]?key|shared[._-]?access|\bsig)[\w.-]{{0,100}}[\"']?\s{{0,9}}[=:]\s{{0,9}})"
    r"(?:(\")(?:[^\"\\]|\\.)*\"|(')[^']*'|[^&;,\"'\n]+)"
)


def is_sensitive(name: str) -> bool:
    """Whether a setting holds a secret, by its name."""
    return re.search(_SENSITIVE, name) is not None


def masked(name: str, value: str | None) -> str | None:
    """The value of a setting without secrets; `MASK` if it is one."""
    if value is None:
        return None
    return MASK if is_sensitive(name) else without_credentials(value)


def without_credentials(text: str) -> str:
    """A text without the users of URLs, and without parameters that are secrets by their names."""
    pieces = map(_without_user, re.split("([\n\"'])", text)) if "@" in text else [text]
    return re.sub(_PARAMETER, _hidden, "".join(pieces))


def _without_user(piece: str) -> str:
    """A piece without the user of a URL.  A slash or an @ may be a part of a password."""
    end = piece.rfind("@")
    for scheme in re.compile(_SCHEME).finditer(piece, 0, max(end, 0)):
        first = re.compile("[/@:]").search(piece, scheme.end(), end + 1)
        if first is not None and (first[0] != "/" or scheme[0].endswith(":")):
            return piece[: scheme.end()] + MASK + piece[end:]
    return piece


def _hidden(found: re.Match[str]) -> str:
    quote = found[2] or found[3] or ""
    return f"{found[1]}{quote}{MASK}{quote}"


#: The beginning of a path of a log in an object store (`segmentlog.store.paths.BucketLocation`).
_OF_BUCKET = r"bucket\+(\w+)://([^\s/;]*)[^\s/]*?;prefix=([^\s/;,:]*)"


def with_plain_buckets(text: str) -> str:
    """A path, or a message with paths, with the URLs that a user knows in place of those here."""
    return re.sub(_OF_BUCKET, _url_of, text)


def _url_of(found: re.Match[str]) -> str:
    scheme, host, prefix = found.groups()
    begin = "bucket+" if scheme == "file" else ""
    return f"{begin}{scheme}://{host}/{unquote(prefix).strip('/')}".rstrip("/")
