"""What a client of Kafka checks of TLS and SASL when it starts, and before it knows a broker.

A client looks at these options only where ``security.protocol`` asks for them.  What it needs a
broker, a password or a class of the JVM for stays unknown here.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyspark


class RefusedOption(NamedTuple):
    """An option for which a client does not start, its value, and what it takes."""

    name: str
    value: str
    accepted: str


#: Options with a closed set of values: the test of a value, and the set in words.
_TLS = {
    "ssl.protocol": (
        re.compile(r"(?i)default|ssl(v3)?|tls(v1(\.[1-3])?)?|dtls(v1\.[02])?"),
        "a protocol of the JVM, such as TLSv1.3",
    ),
    "ssl.enabled.protocols": (
        re.compile(r"((TLSv1(\.[1-3])?|SSLv3|SSLv2Hello)(\s*,\s*|$))*"),
        "a list of TLSv1.3, TLSv1.2, TLSv1.1 and TLSv1",
    ),
    "ssl.cipher.suites": (
        re.compile(r"((TLS|SSL)_[A-Z0-9_]+(\s*,\s*|$))*"),
        "a list of suites by the names of the JVM, such as TLS_AES_256_GCM_SHA384",
    ),
    "ssl.endpoint.identification.algorithm": (
        re.compile(r"(?i)(https|ldaps)?"),
        "https, or an empty text, which ends the check of host names",
    ),
}
_MECHANISMS = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "GSSAPI",
    "EXTERNAL",
    "CRAM-MD5",
    "DIGEST-MD5",
    "NTLM",
)
_FLAGS = ("required", "requisite", "sufficient", "optional")

#: Login modules of Kafka itself, below its package, which some vendors move.
_KAFKA = re.compile(r"(kafkashaded\.)?org\.apache\.kafka\.")
_MODULES = tuple(
    f"org.apache.kafka.common.security.{each}"
    for each in (
        "plain.PlainLoginModule",
        "scram.ScramLoginModule",
        "oauthbearer.OAuthBearerLoginModule",
    )
)
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
_ELSE = "give the test other settings, such as kafka.security.protocol=PLAINTEXT"


def find_fault(given: Mapping[str, str]) -> RefusedOption | None:
    """The first option, without its prefix, for which a client does not start."""
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    has_tls = protocol.endswith("SSL") and "ssl.engine.factory.class" not in given
    of_sasl = _of_sasl(given) if protocol.startswith("SASL") else ()
    return next(chain(_of_tls(given) if has_tls else (), of_sasl), None)


def _of_tls(given: Mapping[str, str]) -> Iterator[RefusedOption]:
    for name, (pattern, accepted) in _TLS.items():
        if name in given and not pattern.fullmatch(given[name]):
            yield RefusedOption(name, given[name], accepted)
    for store, parts in (
        ("truststore", ("certificates",)),
        ("keystore", ("key", "certificate.chain")),
    ):
        place, password, kind = (
            given.get(f"ssl.{store}.{each}", "") for each in ("location", "password", "type")
        )
        inline = [f"ssl.{store}.{each}" for each in parts if given.get(f"ssl.{store}.{each}")]
        if inline and kind.upper() != "PEM":
            yield RefusedOption(inline[0], "…", f"it goes with ssl.{store}.type=PEM alone")
        if inline and (place or password):
            other = f"ssl.{store}.{'location' if place else 'password'}"
            yield RefusedOption(other, place or "…", f"not together with {inline[0]}")
        if inline and len(inline) < len(parts):
            yield RefusedOption(
                inline[0], "…", f"ssl.{store}.key and ssl.{store}.certificate.chain go together"
            )
        if password and not place:
            yield RefusedOption(f"ssl.{store}.password", "…", f"it goes with ssl.{store}.location")
        if place and store == "keystore" and not password and kind.upper() != "PEM":
            yield RefusedOption(
                f"ssl.{store}.location", place, f"it goes with ssl.{store}.password"
            )
        if place and not Path(place).is_file():
            accepted = f"a file on this machine, which is read when a client starts; {_ELSE}"
            yield RefusedOption(f"ssl.{store}.location", place, accepted)


def _of_sasl(given: Mapping[str, str]) -> Iterator[RefusedOption]:
    mechanism, config = given.get("sasl.mechanism", "GSSAPI"), given.get("sasl.jaas.config")
    if not mechanism:
        yield RefusedOption("sasl.mechanism", mechanism, f"one of {', '.join(_MECHANISMS[:5])}")
    if config is None:
        if not _has_login():
            accepted = "this protocol goes with kafka.sasl.jaas.config, or with a file of the JVM"
            yield RefusedOption(
                "security.protocol",
                given["security.protocol"],
                f"{accepted} (java.security.auth.login.config)",
            )
        return
    try:
        module, options = _parse_login(config)
    except ValueError as error:  # the value may hold a password
        yield RefusedOption("sasl.jaas.config", "…", f"one entry of JAAS; {error}")
        return
    is_of_kafka = _KAFKA.match(module) is not None
    if is_of_kafka and not module.endswith(_MODULES):
        yield RefusedOption(
            "sasl.jaas.config", module, f"Kafka's modules are {', '.join(_MODULES)}"
        )
    others = ("sasl.client.callback.handler.class", "security.providers", "sasl.login.class")
    is_judged = is_of_kafka or module == _KERBEROS  # another module may bring its mechanism
    if is_judged and mechanism not in _MECHANISMS and not any(each in given for each in others):
        yield RefusedOption("sasl.mechanism", mechanism, f"one of {', '.join(_MECHANISMS[:5])}")
    services = (given.get("sasl.kerberos.service.name"), options.get("serviceName"))
    if is_judged and mechanism == "GSSAPI" and not any(services):
        accepted = "GSSAPI, the default, goes with kafka.sasl.kerberos.service.name"
        yield RefusedOption("sasl.mechanism", mechanism, accepted)


def _has_login() -> bool:
    """Whether the driver's JVM may have a login of its own: a file of JAAS, or Spark's tokens."""
    classic = getattr(pyspark, "SparkContext", None)  # Spark's client alone has none
    context = classic and classic._active_spark_context
    if context is None or context._jvm is None:  # another process has it
        return True
    if context._jvm.System.getProperty("java.security.auth.login.config") is not None:
        return True
    return any(name.startswith("spark.kafka.clusters.") for name, _ in context.getConf().getAll())


#: Tokens of JAAS as Java's ``StreamTokenizer`` cuts them; a slash begins a comment.
_TOKEN = re.compile(
    r"[\x00-\x20]+|/\*(?:.*?\*/|.*)|/[^\r\n]*"
    r"|(?P<word>[A-Za-z_$\xa0-\U0010ffff][\w$.\-\xa0-\U0010ffff]*)"
    r"|(?P<quote>[\"'])(?P<text>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?:(?P=quote)|(?=[\r\n])|$)"
    r"|-?(?:\d[\d.]*|\.[\d.]+)|.",
    re.DOTALL,
)


def _parse_login(config: str) -> tuple[str, dict[str, str]]:
    """The login module of an entry, and its options; no message shows a value."""
    found = []
    for token in _TOKEN.finditer(config):
        text = token["word"] if token["text"] is None else token["text"]
        if text is not None or not (token[0].isspace() or token[0] <= " " or token[0][0] == "/"):
            found.append((token[0], text))
    if not found:
        raise ValueError("it is empty")
    tokens = iter([*found, ("", None)])
    (_, module), (_, flag) = next(tokens), next(tokens)
    if module is None or flag is None or flag.lower() not in _FLAGS:
        raise ValueError(f"after the module stands {', '.join(_FLAGS[:-1])} or {_FLAGS[-1]}")
    options = {}
    for sign, name in tokens:
        if sign == ";":
            break
        if not sign:
            raise ValueError("it ends in a semicolon")
        (equals, _), (_, value) = next(tokens, ("", None)), next(tokens, ("", None))
        if equals != "=" or name is None or value is None:
            raise ValueError('options stand as name="value", with blanks between them')
        options[name] = value
    if next(tokens)[0]:
        raise ValueError("it ends in the first semicolon")
    return module, options
