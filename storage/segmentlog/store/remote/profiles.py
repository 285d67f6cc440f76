"""Profiles of AWS by name, which `botocore` finds in the files of their user.

A path or a URL has the name alone, so each process that reads or writes looks the profile up by
itself, on its own machine.
"""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from botocore.session import Session

#: Credentials that do not say when they end are looked up again after this time: another program
#: may have renewed those in a file.
_LOOKED_UP_AGAIN = timedelta(minutes=15)

_FILES = {
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "AWS_CONFIG_FILE": "~/.aws/config",
}
_INSTALL = "pip install 'pyspark-segmentlog[aws]'"


class Credentials(NamedTuple):
    """Credentials, and when to ask for them again."""

    access_key: str
    secret_key: str
    token: str | None
    expires_at: datetime

    def __repr__(self) -> str:
        return f"Credentials(expires_at={self.expires_at})"


class Profile(NamedTuple):
    """What a profile has, or the credentials of a role that it may take."""

    credentials: Callable[[], Credentials]  # of now
    region: str  # empty without, as are the others
    endpoint: str
    ca_bundle: str  # path of a file


def find_profile(options: Mapping[str, str]) -> Profile | None:
    """The profile of a URL or of the environment; or None if neither names one, or needs one.

    `options`: those of a URL, of which ``profile``, ``role_arn``, ``session_name`` and
    ``external_id`` count.  Raises `ImportError` if `botocore` is needed and missing; `ValueError`
    if there is no such profile, or it has no credentials.
    """
    name, role = options.get("profile", ""), options.get("role_arn", "")
    has_keys = "AWS_ACCESS_KEY_ID" in os.environ
    if not name and not has_keys:
        name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or ""
    if "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ:
        role = ""  # the token is for it, and the clients of stores use it by themselves
    if not (name or role or (not has_keys and any(map(_is_there, _FILES)))):
        return None
    try:
        from botocore import exceptions
        from botocore.session import Session
    except ImportError:
        if not (name or role):
            return None
        what = f"profile {name!r}" if name else f"role {role!r}"
        raise ImportError(f"{what} is looked up by the package boto3: {_INSTALL}") from None
    try:
        session = Session(profile=name or None)
        config = session.get_scoped_config()
        if role:
            found = _of_role(session, role, options)
        elif session.get_credentials() is None:
            if not name:
                return None
            raise ValueError(f"the profile {name!r} has no credentials")
        else:
            found = _of_session(session, name)
    except exceptions.BotoCoreError as error:
        files = [os.environ.get(each, file) for each, file in _FILES.items()]
        raise ValueError(f"{error} ({' and '.join(files)})") from None
    region = session.get_config_variable("region") or ""
    services = session.full_config.get("services", {}).get(config.get("services", ""), {})
    endpoint = services.get("s3", {}).get("endpoint_url") or config.get("endpoint_url", "")
    return Profile(found, region, endpoint, config.get("ca_bundle", ""))


def _is_there(variable: str) -> bool:
    return os.path.exists(os.path.expanduser(os.environ.get(variable, _FILES[variable])))


def _of_session(session: "Session", name: str) -> Callable[[], Credentials]:
    from botocore.session import Session

    known: list[Any] = [session.get_credentials()]

    def now() -> Credentials:
        credentials = known.pop() if known else Session(profile=name or None).get_credentials()
        if credentials is None:
            raise ValueError(f"the profile {name!r} has no credentials any more")
        frozen = credentials.get_frozen_credentials()
        expires_at = getattr(credentials, "_expiry_time", None)
        if expires_at is None:
            expires_at = datetime.now(UTC) + _LOOKED_UP_AGAIN
        expires_at = expires_at.astimezone(UTC)  # the client takes no other zone
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token, expires_at)

    return now


def _of_role(
    session: "Session", role: str, options: Mapping[str, str]
) -> Callable[[], Credentials]:
    asked = {
        "RoleArn": role,
        "RoleSessionName": options.get("session_name", "segmentlog"),
        "ExternalId": options.get("external_id"),
    }

    region = session.get_config_variable("region") or os.environ.get("AWS_REGION")

    def now() -> Credentials:
        client = session.create_client("sts", options.get("region") or region or "us-east-1")
        given = {name: value for name, value in asked.items() if value}
        found = client.assume_role(**given)["Credentials"]
        return Credentials(
            found["AccessKeyId"],
            found["SecretAccessKey"],
            found["SessionToken"],
            found["Expiration"].astimezone(UTC),
        )

    return now
