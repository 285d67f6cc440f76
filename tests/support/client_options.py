"""Options of clients with which a client of Kafka starts, and with which it does not."""

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LOGIN = f'{_PLAIN} required username="a" password="b";'
_RANGE = "org.apache.kafka.clients.consumer.RangeAssignor"

_TLS = {"security.protocol": "SSL"}
_SASL = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}


def _login(config: str) -> tuple[str, dict[str, str]]:
    return "sasl.jaas.config", {**_SASL, "sasl.jaas.config": config}


def _tls(name: str, value: str = "/no/such/file", **more: str) -> tuple[str, dict[str, str]]:
    return name, {**_TLS, name: value, **{each.replace("_", "."): more[each] for each in more}}


#: By the kind of client: options, among them the one that is at fault.
FAILING: dict[str, list[tuple[str, dict[str, str]]]] = {
    "producers": [
        *(
            (name, {name: value})
            for name, value in (
                ("security.protocol", "SASL_SSLL"),
                ("security.protocol", "SASL_SSL"),
                ("sasl.login.refresh.window.factor", "0.4"),
                ("sasl.login.refresh.window.factor", "1.1f"),
                ("sasl.login.refresh.window.jitter", ".3"),
                ("sasl.login.class", "Own"),
                ("partitioner.class", ""),
                ("transactional.id", " "),
                ("buffer.memory", str(2**63)),
            )
        ),
        _tls("ssl.truststore.location"),
        _tls("ssl.keystore.location", ssl_keystore_password="a"),
        _tls("ssl.keystore.location", __file__),
        _tls("ssl.truststore.password", "a"),
        _tls("ssl.keystore.password", "a"),
        _tls("ssl.truststore.certificates", "a"),
        _tls("ssl.keystore.key", "a", ssl_keystore_type="PEM"),
        _tls("ssl.protocol", "TLSv1.4"),
        _login(""),
        _login(_PLAIN),
        _login(_LOGIN[:-1]),
        _login(f"{_LOGIN} a"),
        _login(f"{_LOGIN} {_LOGIN}"),
        _login(f'{_PLAIN} username="a" password="b";'),
        _login(f'{_PLAIN} must username="a" password="b";'),
        _login(f'{_PLAIN} required username="a", password="b";'),
        _login(f'{_PLAIN} required username="a password="b";'),
        _login(f"{_PLAIN} required username=a password=1b;"),
        _login(f"{_PLAIN}s required;"),
        _login(f"KafkaClient {{ {_LOGIN} }};"),
        ("sasl.mechanism", {**_SASL, "sasl.jaas.config": _LOGIN, "sasl.mechanism": ""}),
        ("sasl.mechanism", {**_SASL, "sasl.jaas.config": _LOGIN, "sasl.mechanism": "GSSAPI"}),
    ],
    "consumers": [
        *(
            (name, {name: value})
            for name, value in (
                ("group.instance.id", "a b"),
                ("group.instance.id", ""),
                ("group.remote.assignor", "uniform"),
                ("heartbeat.interval.ms", "45000"),
                ("heartbeat.interval.ms", "-1"),
                ("partition.assignment.strategy", "range"),
                ("metadata.recovery.strategy", "never"),
                ("fetch.max.bytes", "1.0"),
                ("check.crcs", "1"),
            )
        ),
        ("heartbeat.interval.ms", {"heartbeat.interval.ms": "9", "session.timeout.ms": "9"}),
    ],
}

#: Options with which a client starts.
STARTING: dict[str, list[dict[str, str]]] = {
    "producers": [
        {"security.protocol": " Ssl "},
        {"ssl.truststore.location": "/no/such/file", "sasl.mechanism": "A", "ssl.protocol": "A"},
        {"sasl.login.refresh.window.factor": "1", "sasl.login.refresh.window.jitter": "2.5e-1d"},
        {"delivery.timeout.ms": "30005", "sasl.kerberos.ticket.renew.jitter": "7"},
        {**_TLS, "ssl.protocol": "tlsv1.3", "ssl.enabled.protocols": "TLSv1.3, TLSv1.2"},
        {**_TLS, "ssl.endpoint.identification.algorithm": "", "ssl.cipher.suites": ""},
        {**_SASL, "sasl.jaas.config": f"{_PLAIN} REQUIRED;"},
        {**_SASL, "sasl.jaas.config": f"{_PLAIN} required // a\n a='b' /* c */ d=e_f$g-1 h=\"\";"},
        {**_SASL, "sasl.jaas.config": _LOGIN.replace("b", "Endpoint=sb://a/;Key=a+/=")},
        {**_SASL, "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": f"{_SCRAM} required;"},
    ],
    "consumers": [
        {"partition.assignment.strategy": f"{_RANGE} ", "group.instance.id": "a.b_c-1"},
        {"group.protocol": "Classic", "heartbeat.interval.ms": "0", "fetch.max.bytes": " +5 "},
        {"check.crcs": " TRUE ", "metric.reporters": "", "client.dns.lookup": "use_all_dns_ips "},
    ],
}
