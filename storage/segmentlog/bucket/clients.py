"""The client of a place, with one set of settings for all that is asked there.

Settings come from the URL, whose options have the names that `pyarrow.fs` has, and from the
environment.  An environment changes while a process runs: temporary credentials are renewed, a
wrong key is corrected.  So a client is made again once the variables that it was made from have
changed.
"""

import errno
import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

from segmentlog.bucket.directory_objects import DirectoryObjects
from segmentlog.bucket.objects import Client, Objects, ObstoreObjects
from segmentlog.errors import LogDirectoryError, StorageError
from segmentlog.store.paths import BucketLocation
from segmentlog.store.readable import open_file
from segmentlog.store.remote.location import (
    Location,
    location_of,
    number_of,
    unknown_options,
    with_slashes,
    without_secrets,
)
from segmentlog.store.remote.profiles import Profile, find_profile
from segmentlog.store.remote.requests import request

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Credential

INSTALL = "pip install 'pyspark-segmentlog[bucket]'"

_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_ONCE = {"max_retries": 0}
_TIMEOUT = "60s"  # of a request

#: A client gives a request up by itself after its own time and that of its repetitions.  If it
#: does not, we do: after so many times the one of them, of which an option may be the longer one.
_TIMES, _LEAST_SECONDS = 3, 60.0

#: Variables that a client is made from: those of stores by their beginnings, others by names.
_OF_STORES = ("AWS_", "AZURE_", "GOOGLE_")
_CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_OF_NETWORK = frozenset(
    {
        *_CERTIFICATES,
        "SSL_CERT_DIR",
        "HOME",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
    }
)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_IGNORES_ENDPOINTS = "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"  # those of the environment and of files
#: Without all of them, only the role of a machine is left.
_OF_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)

_clients: dict[tuple[int, str], Objects] = {}


def objects_at(location: BucketLocation) -> Objects:
    """The objects of a place; a process keeps them.

    Raises `LogDirectoryError` if the client is not installed, or an option is not accepted.
    """
    key = os.getpid(), location.root  # threads of the client do not outlive a fork
    if key not in _clients:
        _clients[key] = connect(location)
    return _clients[key]


def connect(location: BucketLocation) -> Objects:
    """The objects of a place, by a client of their own; see `objects_at`."""
    try:
        import obstore  # noqa: F401 - a local directory needs it, too
    except ImportError:
        reason = f"a log in an object store needs the package obstore: {INSTALL}"
        raise LogDirectoryError(str(location), reason) from None
    if location.scheme == "file":
        return DirectoryObjects(location.prefix, str(location))
    lists_all = location.scheme in {"abfs", "abfss", "az"}  # Azure lists from the beginning
    try:
        given = location_of(location.store).options.get("request_timeout", "0")
        seconds = _TIMES * max(number_of("request_timeout", given), _LEAST_SECONDS)
    except ValueError:
        seconds = _TIMES * _LEAST_SECONDS  # the client is refused below
    objects = ObstoreObjects(
        str(location),
        partial(_client, location),
        environment,
        lists_all=lists_all,
        seconds=seconds,
    )
    objects.connect()
    return objects


def environment() -> tuple[tuple[str, str], ...]:
    """The variables of now that a client is made from."""
    return tuple((name, os.environ.get(name, "")) for name in os.environ if _matters(name))


@lru_cache(1024)  # each request asks for all names
def _matters(name: str) -> bool:
    return name.startswith(_OF_STORES) or name.upper() in _OF_NETWORK


def _client(location: BucketLocation) -> Client:
    from obstore.exceptions import BaseError

    made_from = environment()
    try:
        made = _made(location_of(location.store), location.prefix)
        return Client(made(_RETRIES), partial(made, _ONCE), made_from)
    except (BaseError, ValueError, TypeError, ImportError) as error:
        said = without_secrets(str(error).partition("\n")[0])
        raise LogDirectoryError(str(location), f"cannot be opened: {said}") from None
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        reason = f"cannot be opened: {error.filename}: {error.strerror}"
        raise LogDirectoryError(str(location), reason) from error


def _made(location: Location, prefix: str) -> "Callable[[Any], ObjectStore]":
    """Makes the client of `obstore`, with a configuration of its repetitions."""
    from obstore.store import AzureStore, GCSStore, S3Store

    options = dict(location.options)
    bucket, made = location.host, cast("Any", AzureStore)
    more, client = dict[str, Any](), dict[str, Any](timeout=_TIMEOUT)
    ca_bundle = next(filter(None, map(os.environ.get, _CERTIFICATES)), "")
    profile = None
    if location.scheme == "s3":
        profile = None if _has_own_keys(location) else find_profile(options)
        config, made = _s3_config(location, options, profile), S3Store
        if profile:
            more["credential_provider"] = partial(_credentials, profile)
            ca_bundle = ca_bundle or profile.ca_bundle
    elif location.scheme == "gs":
        config, made = _google_config(location, options), GCSStore
    else:
        config = _azure_config(location, options)
        if ":" in location.host:  # a server, whose paths begin with the container
            bucket, _, prefix = prefix.partition("/")
        elif "." in location.host:
            bucket = location.user
    for name, theirs in _CLIENT_NAMES.items():
        if name in options and location.scheme == "s3":
            value = options.pop(name)
            is_url = theirs == "proxy_url"
            client[theirs] = with_slashes(value) if is_url else f"{number_of(name, value)}s"
    if options:
        raise ValueError(unknown_options(location.scheme, options))
    if location.scheme == "s3" and "region" not in config:
        config["region"] = _region(bucket, profile, has_endpoint="endpoint" in config)
    if location.scheme == "s3":
        _put_above_environment(config, bucket)
    if any(str(value).startswith("http://") for value in config.values()) or _uses_http(config):
        client["allow_http"] = True
    if ca_bundle:
        with open_file(os.path.abspath(ca_bundle)) as file:
            client["root_certificate"] = file.read(0, file.status().size)
    return lambda retries: made(
        bucket,
        prefix=prefix or None,
        config=config,
        client_options=client,
        retry_config=retries,
        **more,
    )


def _has_own_keys(location: Location) -> bool:
    """Whether a URL has the keys with which to sign, or says that nothing is signed."""
    if "profile" in location.options and (location.user or "access_key" in location.options):
        raise ValueError("the URL has keys and a profile: leave one of them out")
    is_anonymous = location.options.get("anonymous") == "true"
    return bool(location.user) or "access_key" in location.options or is_anonymous


def _credentials(profile: Profile) -> "S3Credential":
    found = profile.credentials()
    return {
        "access_key_id": found.access_key,
        "secret_access_key": found.secret_key,
        "token": found.token,
        "expires_at": found.expires_at,
    }


def _uses_http(config: dict[str, Any]) -> bool:
    """Whether a server without TLS stands in the account of Google Cloud Storage."""
    return '"gcs_base_url": "http://' in config.get("service_account_key", "")


#: More of these parameters, and the client's names of what is no matter of S3.
_CLIENT_NAMES = {
    "request_timeout": "timeout",
    "connect_timeout": "connect_timeout",
    "proxy_options": "proxy_url",
}

#: Parameters of `pyarrow.fs.S3FileSystem`, which reads take, and the names of the client.
_S3_NAMES = {
    "region": "region",
    "endpoint_override": "endpoint",
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "session_token": "session_token",
    "role_arn": "role_arn",
    "request_payer": "request_payer",
}


def _s3_config(
    location: Location, options: dict[str, str], profile: Profile | None
) -> dict[str, Any]:
    """The client's names of options, which are taken out; so do the other two functions."""
    config: dict[str, Any] = {}
    if location.user:
        config |= {"access_key_id": location.user, "secret_access_key": location.password}
    scheme = options.pop("scheme", "https")
    for name, theirs in _S3_NAMES.items():
        if name in options:
            config[theirs] = options.pop(name)
    payer = config.get("request_payer") or os.environ.get("AWS_REQUEST_PAYER", "")
    if payer.lower() == "requester":  # as S3 and other tools call it; the client takes ``true``
        config["request_payer"] = "true"
    if options.pop("anonymous", "false") == "true":
        config["skip_signature"] = True
    if options.pop("force_virtual_addressing", "false") == "true":
        config["virtual_hosted_style_request"] = True
    for name in (
        "allow_bucket_creation",
        "allow_bucket_deletion",
        "profile",
        "session_name",
        "external_id",
        "load_frequency",
        "background_writes",
    ):
        options.pop(name, None)
    if profile:
        config.pop("role_arn", None)  # the profile is that of the role
    endpoint = config.pop("endpoint", "")
    if os.environ.get(_IGNORES_ENDPOINTS, "").lower() != "true":
        endpoint = endpoint or next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
        endpoint = endpoint or (profile.endpoint if profile else "")
    if endpoint := with_slashes(endpoint):
        config["endpoint"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
    is_signed = profile or config.keys() & {"access_key_id", "skip_signature"}
    no_role = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    if not is_signed and no_role and not any(map(os.environ.get, _OF_CREDENTIALS)):
        said = "no credentials were found (AWS_ACCESS_KEY_ID, a profile, or a role)"
        raise StorageError(errno.EPERM, said, f"{location.scheme}://{location.host}")
    return config


def _put_above_environment(config: dict[str, Any], bucket: str) -> None:
    """Give the client the endpoint under all of its names.

    It reads the environment by itself.  The variable of S3 alone comes above an endpoint that it
    was given, and an empty variable counts as an endpoint.
    """
    if "endpoint" not in config and any(each in os.environ for each in _ENDPOINTS):
        of_bucket = f"{bucket}." if "virtual_hosted_style_request" in config else ""
        config["endpoint"] = f"https://{of_bucket}s3.{config['region']}.amazonaws.com"
    if "endpoint" in config:
        config["aws_endpoint_url_s3"] = config["endpoint"]


def _region(bucket: str, profile: Profile | None, *, has_endpoint: bool) -> str:
    """The region of a bucket of AWS, which refuses requests for another one."""
    found = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = found or (profile.region if profile else "")
    if found or has_endpoint:
        return found or "us-east-1"
    from pyarrow.fs import resolve_s3_region

    ask = partial(resolve_s3_region, bucket)
    return str(request(f"s3://{bucket}", "asking for the region", ask))


def _google_config(location: Location, options: dict[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, theirs in {"access_token": "bearer_token", "service_account_key": ""}.items():
        if name in options:
            config[theirs or name] = options.pop(name)
    for name in ("project_id", "retry_limit_seconds", "default_bucket_location"):
        options.pop(name, None)
    scheme = options.pop("scheme", "https")
    endpoint = with_slashes(options.pop("endpoint_override", ""))
    if endpoint and "://" not in endpoint:
        endpoint = f"{scheme}://{endpoint}"
    if location.user == "anonymous" or options.pop("anonymous", "false") == "true":
        # With its option for this (skip_signature), the client asks for a token when it writes.
        account = dict.fromkeys(("private_key", "private_key_id", "client_email"), "")
        server = {"gcs_base_url": endpoint} if endpoint else {}
        config["service_account_key"] = json.dumps(account | {"disable_oauth": True} | server)
    elif endpoint:
        config["base_url"] = endpoint
    return config


#: Parameters of `pyarrow.fs.AzureFileSystem` that the client has, too.
_AZURE_NAMES = (
    "account_name",
    "account_key",
    "sas_token",
    "client_id",
    "client_secret",
    "tenant_id",
)


def _azure_config(location: Location, options: dict[str, str]) -> dict[str, Any]:
    """Config for the forms of URLs that `segmentlog.store.remote.stores` reads, and ``az:``.

    Without an account, it is that of the environment (``AZURE_STORAGE_ACCOUNT_NAME``).
    """
    config: dict[str, Any] = {name: options.pop(name) for name in _AZURE_NAMES if name in options}
    host, account = location.host, location.user
    scheme = "http" if options.pop("enable_tls", "true") == "false" else "https"
    authority = options.pop("blob_storage_authority", "")
    options.pop("dfs_storage_authority", None)  # only one of the two is asked here
    if ":" in host:
        authority = host
    elif "." in host:
        account = host.partition(".")[0]
    if account:
        config["account_name"] = account
    if location.password:
        config["account_key"] = location.password
    if options.pop("anonymous", "false") == "true":
        config["skip_signature"] = True
    account = config.get("account_name", os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", ""))
    if authority.startswith("."):  # of another cloud: the account comes before
        config["endpoint"] = f"{scheme}://{account}{authority}"
    elif authority:
        config["endpoint"] = f"{scheme}://{authority}/{account}"
    return config
