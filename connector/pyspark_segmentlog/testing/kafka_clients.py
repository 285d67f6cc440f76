"""Options of Kafka's own clients under `as_kafka`: modelled, refused, or without effect.

The names and the values that are accepted are those of the clients of Kafka 3.9 and 4.x.  A value
that a client refuses fails the job in production, and so it is refused here.
"""

import difflib
import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pyspark_segmentlog.testing.kafka_security import find_fault
from segmentlog.errors import OptionError

logger = logging.getLogger(__name__)

_PREFIX = "kafka."

#: Options whose lack of effect has been named; a stream would name them for each micro-batch.
NAMED = set[str]()

#: Names by the clients that know them and by the values that these take; ``~`` stands before words
#: in any case, and ``text`` for values that only a broker or a class of the JVM can judge.
_NAMES = """
both text: bootstrap.servers client.id client.rack config.providers sasl.jaas.config
 sasl.kerberos.kinit.cmd sasl.kerberos.service.name sasl.mechanism
 sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.iss
 sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
 sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
 sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
 sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.expected.audience
 sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope
 sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
 sasl.oauthbearer.token.endpoint.url security.providers ssl.cipher.suites ssl.enabled.protocols
 ssl.endpoint.identification.algorithm ssl.key.password ssl.keymanager.algorithm
 ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
 ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
 ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
 ssl.truststore.password ssl.truststore.type
both true|false: auto.include.jmx.reporter enable.metrics.push metadata.cluster.check.enable
 sasl.oauthbearer.allow.unverified.audience sasl.oauthbearer.allow.unverified.issuer
 sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.header.urlencode
both decimal: sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
both int: sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
 sasl.oauthbearer.clock.skew.seconds
both int -1..: receive.buffer.bytes send.buffer.bytes
both int 0..: request.timeout.ms
both int 0..900: sasl.login.refresh.min.period.seconds
both int 0..3600: sasl.login.refresh.buffer.seconds sasl.oauthbearer.assertion.claim.nbf.seconds
both int 0..86400: sasl.oauthbearer.assertion.claim.exp.seconds
both int 1..: metrics.num.samples
both long: connections.max.idle.ms sasl.kerberos.min.time.before.relogin
 sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
 sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
 sasl.oauthbearer.jwks.endpoint.retry.backoff.ms socket.connection.setup.timeout.max.ms
 socket.connection.setup.timeout.ms
both long 0..: bootstrap.resolve.timeout.ms metadata.max.age.ms
 metadata.recovery.rebootstrap.trigger.ms metrics.sample.window.ms reconnect.backoff.max.ms
 reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms
both INFO|DEBUG|TRACE: metrics.recording.level
both ~rebootstrap|none: metadata.recovery.strategy
both ~plaintext|ssl|sasl_plaintext|sasl_ssl: security.protocol
both use_all_dns_ips|resolve_canonical_bootstrap_servers_only: client.dns.lookup
both class: sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class
 sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
 ssl.engine.factory.class
both classes: interceptor.classes metric.reporters
both decimal 0.5..1.0: sasl.login.refresh.window.factor
both decimal 0.0..0.25: sasl.login.refresh.window.jitter
both ~es256|rs256: sasl.oauthbearer.assertion.algorithm
consumers text: auto.offset.reset group.id group.remote.assignor key.deserializer
 value.deserializer
consumers true|false: allow.auto.create.topics check.crcs enable.auto.commit
 exclude.internal.topics
consumers int: session.timeout.ms
consumers int 0..: auto.commit.interval.ms default.api.timeout.ms fetch.max.bytes
 fetch.max.wait.ms fetch.min.bytes heartbeat.interval.ms max.partition.fetch.bytes
consumers int 1..: max.poll.interval.ms max.poll.records
consumers ~classic|consumer: group.protocol
consumers read_committed|read_uncommitted: isolation.level
consumers batch_optimized|record_limit: share.acquire.mode
consumers implicit|explicit: share.acknowledgement.mode
consumers classes: partition.assignment.strategy
consumers id: group.instance.id
producers text: key.serializer value.serializer
producers true|false: enable.idempotence partitioner.adaptive.partitioning.enable
 partitioner.ignore.keys partitioner.rack.aware transaction.two.phase.commit.enable
producers int: transaction.timeout.ms
producers int -131072..22: compression.zstd.level
producers int 0..: batch.size delivery.timeout.ms max.request.size retries
producers int 1..: max.in.flight.requests.per.connection
producers int -1..9: compression.gzip.level
producers int 1..17: compression.lz4.level
producers long 0..: buffer.memory linger.ms max.block.ms partitioner.availability.timeout.ms
producers long 5000..: metadata.max.idle.ms
producers all|-1|0|1: acks
producers none|gzip|snappy|lz4|zstd: compression.type
producers class: partitioner.class
producers filled: transactional.id
producers ~full|incremental: buffer.memory.allocation.strategy
"""


class ClientOption(NamedTuple):
    """An option: the clients that know it, and the values that they take."""

    clients: str
    values: str


def _options() -> Iterator[tuple[str, ClientOption]]:
    for line in _NAMES.replace("\n ", " ").strip().splitlines():
        kind, _, names = line.partition(": ")
        option = ClientOption(*kind.split(" ", 1))
        yield from ((name, option) for name in names.split())


CLIENT_OPTIONS = dict(_options())

#: Options that change or refuse rows as they do with a broker.
MODELLED = frozenset(
    {
        "bootstrap.servers",
        "isolation.level",
        "compression.type",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "batch.size",
        "max.request.size",
        "buffer.memory",
    }
)

_NO_CLASSES = "as_kafka runs no classes of the JVM, and this one may change {}; {}"
_BY_COLUMN = (
    "leave it out in the test and name the partitions in a column partition, or test with a broker"
)
_FILES = "as_kafka does not resolve the values that it provides; give the values themselves"
_TRANSACTIONS = (
    "leave it out: Spark's sink begins no transactions, and its producer refuses each record if "
    "it has an id"
)
_CHECKED = "as_kafka always checks the checksums of batches; leave it out, or test with a broker"

#: Options that change rows or fail a job in ways that are not modelled, with the reason; by the
#: value for which they are without effect.
REFUSED: dict[str, tuple[str, str]] = {
    "partitioner.class": ("", _NO_CLASSES.format("the partitions of records", _BY_COLUMN)),
    "partitioner.ignore.keys": ("false", f"as_kafka partitions records by key; {_BY_COLUMN}"),
    "interceptor.classes": (
        "",
        _NO_CLASSES.format("records", "leave it out in the test, or test with a broker"),
    ),
    "transactional.id": ("", _TRANSACTIONS),
    "config.providers": ("", _FILES),
    "check.crcs": ("true", _CHECKED),
}

#: Kinds of values: numbers with their largest one, and texts with what they are.
_WHOLE = r"[+-]?[0-9]+"
_DECIMAL = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?"
_NUMBERS: dict[str, tuple[str, float, Callable[[Any], float]]] = {
    "int": (_WHOLE, 2**31 - 1, int),
    "long": (_WHOLE, 2**63 - 1, int),
    "decimal": (_DECIMAL, sys.float_info.max, float),
}
_CLASS = r"([\w$]+\.)+[\w$]+"
_TEXTS = {
    "text": (".*", "any text"),
    "filled": (".+", "a text that is not empty"),
    "id": (r"[A-Za-z0-9._-]{1,249}", "a name of ASCII letters, digits, '.', '_' and '-'"),
    "class": (_CLASS, "the name of a class with its package"),
    "classes": (rf"({_CLASS}(\s*,\s*{_CLASS})*)?", "names of classes with their packages"),
}
_DEFAULTS = {
    "max.request.size": "1048576",
    "buffer.memory": "33554432",
    "linger.ms": "0",
    "request.timeout.ms": "30000",
    "retries": "1",
    "acks": "all",
    "max.in.flight.requests.per.connection": "5",
    "heartbeat.interval.ms": "3000",
    "session.timeout.ms": "45000",
}


def check_client_options(options: Mapping[str, str], clients: str) -> None:
    """Refuse values that a client refuses, and name the options without effect.

    `options`: of a source or a sink, by their lower-cased names.  Raises `OptionError` for the
    first option that has a bad value, or is not modelled and changes rows.
    """
    given = {
        name.removeprefix(_PREFIX): value.strip()
        for name, value in options.items()
        if name.startswith(_PREFIX)
    }
    unused = []
    for name, value in given.items():
        known = CLIENT_OPTIONS.get(name)
        if known is None or known.clients not in ("both", clients):
            unused.append(_unused(name, known))
            continue
        _check_value(name, value, known.values)
        harmless, reason = REFUSED.get(name, (value, ""))
        if value.lower() != harmless.lower():
            raise OptionError(_PREFIX + name, value, reason)
        if name not in MODELLED:
            unused.append(_PREFIX + name)
    (_check_producer if clients == "producers" else _check_consumer)(given)
    fault = find_fault(given)
    if fault is not None:
        raise OptionError(
            _PREFIX + fault.name, fault.value, f"Kafka's clients take {fault.accepted}"
        )
    new = [each for each in unused if each not in NAMED]
    if new:
        logger.warning("as_kafka: options without effect: %s", ", ".join(new))
    NAMED.update(new)


def _unused(name: str, known: ClientOption | None) -> str:
    """An option that the client does not know, with the name that was probably meant."""
    near = difflib.get_close_matches(name, CLIENT_OPTIONS, n=1, cutoff=0.8)
    if known is not None or not near:
        return _PREFIX + name
    return f"{_PREFIX}{name} (Kafka has no such option; did you mean {_PREFIX}{near[0]}?)"


def _check_value(name: str, value: str, values: str) -> None:
    kind, _, bounds = values.partition(" ")
    if kind in _NUMBERS:
        pattern, limit, parse = _NUMBERS[kind]
        least, _, most = bounds.partition("..")
        low, high = parse(least or -limit - 1), parse(most or limit)
        number = "a number" if kind == "decimal" else "a whole number"
        accepted = f"{number} from {low} to {high}"
        is_right = re.fullmatch(pattern, value) is not None
        is_right = is_right and low <= parse(value.rstrip("fFdD")) <= high
        is_right = is_right and not (name == "compression.gzip.level" and value == "0")
    elif kind in _TEXTS:
        pattern, accepted = _TEXTS[kind]
        is_right = re.fullmatch(pattern, value, re.DOTALL) is not None
    else:
        words, is_any_case = values.removeprefix("~").split("|"), values.startswith("~")
        accepted = " or ".join(words)
        is_any_case = is_any_case or values == "true|false"
        is_right = (value.lower() if is_any_case else value) in words
    if not is_right:
        raise OptionError(_PREFIX + name, value, f"Kafka's clients take {accepted}")


def _check_consumer(given: Mapping[str, str]) -> None:
    if given.get("group.protocol", "classic").lower() != "classic":
        return
    if "group.remote.assignor" in given:
        accepted = "it goes with kafka.group.protocol=consumer alone"
        raise OptionError("kafka.group.remote.assignor", given["group.remote.assignor"], accepted)
    heartbeat, session = (
        given.get(name, _DEFAULTS[name])
        for name in ("heartbeat.interval.ms", "session.timeout.ms")
    )
    if int(heartbeat) >= int(session):
        accepted = f"a consumer takes less than session.timeout.ms, which is {session}"
        raise OptionError("kafka.heartbeat.interval.ms", heartbeat, accepted)


def _check_producer(given: Mapping[str, str]) -> None:
    found = {**_DEFAULTS, **given}
    least = int(found["linger.ms"]) + int(found["request.timeout.ms"])
    if "delivery.timeout.ms" in given and int(given["delivery.timeout.ms"]) < least:
        accepted = f"a producer takes at least linger.ms + request.timeout.ms, which is {least}"
        raise OptionError("kafka.delivery.timeout.ms", given["delivery.timeout.ms"], accepted)
    if given.get("enable.idempotence", "").lower() != "true":
        return
    for name, is_right, accepted in (
        ("acks", found["acks"] in ("all", "-1"), "all"),
        ("retries", int(found["retries"]) > 0, "at least 1"),
        (
            "max.in.flight.requests.per.connection",
            int(found["max.in.flight.requests.per.connection"]) <= 5,
            "at most 5",
        ),
    ):
        if not is_right:
            reason = f"with kafka.enable.idempotence=true, a producer takes {accepted}"
            raise OptionError(_PREFIX + name, found[name], reason)


#: Bytes of a batch and of a record beside its key, its value and its headers, and of a length.
_HEAD_BYTES = 61 + 21
_LENGTH_BYTES = (
    "CASE WHEN {0} < 64 THEN 1 WHEN {0} < 8192 THEN 2 WHEN {0} < 1048576 THEN 3 ELSE 4 END"
)


def sent_rows(rows: Any, options: Mapping[str, str], columns: Collection[str]) -> Any:  # noqa: ANN401
    """Rows that fail, when they are computed, where a producer refuses a record for its size.

    A producer takes the size before compression.

    `rows`: a DataFrame, classic or of Spark Connect.  `options`: of the sink, by their lower-cased
    names.  `columns`: those of `rows` that the sink takes.
    """
    limits = {
        name: int(options.get(_PREFIX + name, _DEFAULTS[name]))
        for name in ("max.request.size", "buffer.memory")
    }
    size = f"{_HEAD_BYTES}L + {_bytes('value')}"
    size += f" + {_bytes('key')}" if "key" in columns else " + 1L"
    if "headers" in columns:
        each = f"{_bytes('h.key')} + {_bytes('h.value')}"
        size += f" + {_LENGTH_BYTES.format('coalesce(size(headers), 0)')}"
        size += f" + coalesce(aggregate(headers, 0L, (sum, h) -> sum + {each}), 0L)"
    else:
        size += " + 1L"
    error = "'org.apache.kafka.common.errors.RecordTooLargeException: The message is '"
    larger = "' bytes when serialized which is larger than "
    request = f"{limits['max.request.size']}, which is the value of the max.request.size"
    memory = "the total memory buffer you have configured with the buffer.memory"
    checked = "CASE " + " ".join(
        f"WHEN {size} > {limits[name]}L "
        f"THEN raise_error(concat({error}, {size}, {larger}{told} configuration.'))"
        for name, told in (("max.request.size", request), ("buffer.memory", memory))
    )
    others = [each for each in columns if each != "value"]
    return rows.selectExpr(*others, f"{checked} ELSE value END AS value")


def _bytes(column: str) -> str:
    """The bytes of a field and of its length in SQL; a null has no bytes."""
    length = f"coalesce(octet_length({column}), 0)"
    return f"{length} + {_LENGTH_BYTES.format(length)}"
