"""Secrets in names and values, which nothing shows."""

import time

import pytest

from segmentlog import OptionError
from segmentlog.masking import MASK, is_sensitive, masked, without_credentials


@pytest.mark.parametrize(
    "name",
    [
        "ssl.keystore.password",
        "listener.name.x.sasl.jaas.config",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.certificates",
        "sasl.oauthbearer.client.credentials.client.secret",
        "delegation.token.master.key",
        "rsm.config.aws.secret.access.key",
        "value.converter.basic.auth.user.info",
        "schema.registry.basic.auth.user.info",
        "database.pass",
        "db.pwd",
        "mysql.passwd",
        "http.headers.authorization",
        "datadog.api_key",
        "datadog.api-key",
        "apiKey",
        "dbPass",
        "azure.storage.connection.string",
        "azure.eventhubs.sas.token",
        "account_key",
        "dbPwd",
        "sentry.dsn",
        "slack.webhook.url",
        "confluent.license",
        "signing_key",
        "proxy-authorization",
    ],
)
def test_secrets_are_masked(name: str) -> None:
    """The value of a sensitive setting is hidden, and null stays null."""
    assert is_sensitive(name)
    assert (MASK, None) == (masked(name, "x"), masked(name, None))


@pytest.mark.parametrize(
    "name",
    [
        "retention.ms",
        "ssl.keystore.location",
        "cleanup.policy",
        "max.bypass",
        "compass",
        "value.converter.basic.auth.credentials.source",
        "key.converter",
        "primary_key",
        "topics",
        "inter.worker.key.generation.algorithm",
        "inter.worker.signature.algorithm",
        "errors.log",
        "delegation.token.expiry.time.ms",
        "connection.url",
        "remote_storage_key_file",
    ],
)
def test_other_settings_are_not_masked(name: str) -> None:
    """Their values are shown."""
    assert masked(name, "x") == "x"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("mongodb://u:S3CRET@a,b/db?w=1", "mongodb://[hidden]@a,b/db?w=1"),
        (
            "jdbc:mysql://h/db?user=a&password=S3CRET&x=1",
            "jdbc:mysql://h/db?user=a&password=[hidden]&x=1",
        ),
        ("jdbc:oracle:thin:u/S3CRET@//h:1/x", "jdbc:oracle:thin:[hidden]@//h:1/x"),
        ("s3://KEY:S3/C@RET@bucket/x", "s3://[hidden]@bucket/x"),
        ("https://S3CRET@host/x", "https://[hidden]@host/x"),
        ('["s3://K:S3CRET@b", "/data"]', '["s3://[hidden]@b", "/data"]'),
        (
            "AccountName=a;AccountKey=S3CRET==;EndpointSuffix=e",
            "AccountName=a;AccountKey=[hidden];EndpointSuffix=e",
        ),
        (
            "Content-Type: text,Authorization: Basic S3CRET",
            "Content-Type: text,Authorization: [hidden]",
        ),
        (
            'org.Module required username="u" password="S3CRET";',
            'org.Module required username="u" password="[hidden]";',
        ),
        ("https://h/x?sig=S3CRET&se=1", "https://h/x?sig=[hidden]&se=1"),
        ("https://host/users/me@example.com", "https://host/users/me@example.com"),
        ("broker-1:9092,broker-2:9092", "broker-1:9092,broker-2:9092"),
    ],
)
def test_secrets_within_values_are_hidden(value: str, shown: str) -> None:
    """The rest of the value stays, because operators need it."""
    assert shown == masked("any.setting", value)


@pytest.mark.parametrize(
    "piece", ["a", "a:/", "@a:/", "a://@", "token=", "token='", 'token="', "x.token ", "-password"]
)
def test_the_time_is_proportional_to_the_value(piece: str) -> None:
    """Values are crafted by others."""
    begin = time.process_time()
    without_credentials(piece * 100_000)
    assert time.process_time() - begin < 5


def test_errors_of_options_show_no_secrets() -> None:
    """A client's password, and the password of a URL, are in neither of the error's texts."""
    for option, value in (("kafka.sasl.jaas.config", "S3CRET"), ("paths", '["s3://a:S3CRET@b"')):
        error = OptionError(option, value, "it is not supported")
        assert "S3CRET" not in f"{error} {error!r} {error.value}"
        assert option in str(error)
