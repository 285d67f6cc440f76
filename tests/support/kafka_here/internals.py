"""A broker whose own topics hold everything that they can: groups, transactions, metadata.

`make` fills a running broker through its own clients, and leaves clients and transactions open, so
that a stop of the broker finds them.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.java_gateway import JavaObject

from kafka_here.broker import Broker
from kafka_here.java import JavaClient, Outgoing

#: Settings of a broker with ACLs, share groups, and a snapshot after every few records.
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "metadata.log.max.record.bytes.between.snapshots": 3000,
    "share.coordinator.state.topic.num.partitions": 2,
    "group.share.enable": "true",
}

_TEXT = "org.apache.kafka.common.serialization.StringDeserializer"
_SECONDS = 60


@contextlib.contextmanager
def left_open(broker: Broker, client: JavaClient) -> Iterator[None]:
    """Fill a running broker; inside, its clients and transactions are open.

    Topics: ``orders`` with 3 partitions, ``invoices``, ``gone``, which is deleted, and ``again``,
    which is deleted and made again.  Groups: ``shipping`` (classic, with a member), ``fraud``
    (KIP-848, with a member), ``audit`` (offsets alone), ``billing`` (offsets in transactions),
    ``left`` (empty), ``removed`` (offsets were deleted), ``shared`` (a share group).  A broker of
    3.9 has neither ``fraud`` nor ``shared``.
    """
    java = _Java(broker, client)
    orders = [Outgoing(b"k", b"v%d" % i, partition=i % 3) for i in range(60)]
    client.create_topic("orders", 3, retention_ms=604800000)
    client.create_topic("invoices", 2)
    for topic in ("gone", "again"):
        client.create_topic(topic, 2, segment_bytes=1048576)
    client.produce("orders", orders)
    java.delete_topics(["gone", "again"])
    client.create_topic("again", 1, cleanup_policy="compact")
    client.alter("TOPIC", "orders", {"retention.ms": 86400000, "compression.type": "zstd"})
    client.alter("TOPIC", "orders", {"compression.type": None})
    client.alter("BROKER", "", {"log.retention.bytes": 1000000})
    client.alter("BROKER", "1", {"log.cleaner.threads": 2})
    java.alter_access()
    open_clients: list[JavaObject] = []
    try:
        java.commit_alone("audit", {("orders", 0): 5, ("orders", 1): 20, ("orders", 2): 99})
        java.commit_alone("removed", {("orders", 0): 1})
        java.delete_offsets("removed")
        open_clients.append(java.member("shipping", "orders", group_instance_id="static-1"))
        java.member("left", "orders").close()
        if not broker.version.startswith("3"):
            open_clients.append(java.member("fraud", "orders", group_protocol="consumer"))
            open_clients.append(java.share_member("shared", "orders"))
        java.transactions("billing", "orders", "invoices")
        yield
    finally:
        for each in open_clients:
            with contextlib.suppress(Exception):  # its broker has ended
                each.close(java.jvm.java.time.Duration.ofMillis(0))


class _Java:
    """Calls of Kafka's Java clients for the topics that brokers keep for themselves."""

    def __init__(self, broker: Broker, client: JavaClient) -> None:
        self._client, self.jvm = client, client.jvm
        self._admin: Any = client._admin
        self._servers = broker.bootstrap_servers

    def _wait(self, future: JavaObject) -> Any:
        return self._client._wait(future)

    def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete topics."""
        self._wait(self._admin.deleteTopics([*topics]).all())

    def alter_access(self) -> None:
        """Add quotas, ACLs and users, and remove some of them."""
        common = self.jvm.org.apache.kafka.common
        admin = self.jvm.org.apache.kafka.clients.admin

        def quota(entity: dict[str, str | None], key: str, value: float | None) -> None:
            alteration = common.quota.ClientQuotaAlteration(
                common.quota.ClientQuotaEntity(entity),
                [common.quota.ClientQuotaAlteration.Op(key, value)],
            )
            self._wait(self._admin.alterClientQuotas([alteration]).all())

        quota({"user": "anna"}, "producer_byte_rate", 1024.0)
        quota({"user": None, "client-id": "c"}, "consumer_byte_rate", 2048.0)
        quota({"user": "ben"}, "request_percentage", 50.5)
        quota({"user": "ben"}, "request_percentage", None)

        def acl(kind: str, name: str, pattern: str, operation: str, permission: str) -> JavaObject:
            resource, access = common.resource, common.acl
            return access.AclBinding(
                resource.ResourcePattern(
                    getattr(resource.ResourceType, kind),
                    name,
                    getattr(resource.PatternType, pattern),
                ),
                access.AccessControlEntry(
                    "User:anna",
                    "*",
                    getattr(access.AclOperation, operation),
                    getattr(access.AclPermissionType, permission),
                ),
            )

        bindings = [
            acl("TOPIC", "orders", "LITERAL", "READ", "ALLOW"),
            acl("GROUP", "ship", "PREFIXED", "ALL", "DENY"),
            acl("CLUSTER", "kafka-cluster", "LITERAL", "ALTER_CONFIGS", "ALLOW"),
        ]
        self._wait(self._admin.createAcls(bindings).all())
        self._wait(self._admin.deleteAcls([bindings[2].toFilter()]).all())

        mechanism = admin.ScramMechanism
        password = b"not-a-secret"
        for user, kind in (
            ("anna", mechanism.SCRAM_SHA_256),
            ("anna", mechanism.SCRAM_SHA_512),
            ("ben", mechanism.SCRAM_SHA_512),
        ):
            info = admin.ScramCredentialInfo(kind, 4096)
            added = [admin.UserScramCredentialUpsertion(user, info, password)]
            self._wait(self._admin.alterUserScramCredentials(added).all())
        removed = [admin.UserScramCredentialDeletion("ben", mechanism.SCRAM_SHA_512)]
        self._wait(self._admin.alterUserScramCredentials(removed).all())

    def consumer(self, group: str, **settings: object) -> JavaObject:
        """A consumer of a group."""
        given = {key.replace("_", "."): value for key, value in settings.items()}
        defaults = {
            "bootstrap.servers": self._servers,
            "group.id": group,
            "key.deserializer": _TEXT,
            "value.deserializer": _TEXT,
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "client.id": f"client-{group}",
        }
        properties = self._client._properties(defaults | given)
        return self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)

    def _offsets(self, offsets: dict[tuple[str, int], int], metadata: str) -> JavaObject:
        found = self.jvm.java.util.HashMap()
        for (topic, partition), offset in offsets.items():
            made = self.jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset, metadata)
            found.put(self._client._partition(topic, partition), made)
        return found

    def commit_alone(self, group: str, offsets: dict[tuple[str, int], int]) -> None:
        """Commit offsets without a subscription."""
        consumer = self.consumer(group)
        consumer.assign([self._client._partition(*each) for each in offsets])
        consumer.commitSync(self._offsets(offsets, "by hand"))
        consumer.close()

    def delete_offsets(self, group: str) -> None:
        """Delete a group."""
        self._wait(self._admin.deleteConsumerGroups([group]).all())

    def member(self, group: str, topic: str, **settings: object) -> JavaObject:
        """A consumer that has read something, and committed what it has read."""
        consumer = self.consumer(group, max_poll_records=7, **settings)
        consumer.subscribe([topic])
        self._poll(consumer)
        consumer.commitSync()
        return consumer

    def share_member(self, group: str, topic: str) -> JavaObject:
        """A consumer of a share group, which has acknowledged some records."""
        self._client.alter("GROUP", group, {"share.auto.offset.reset": "earliest"})
        defaults = {
            "bootstrap.servers": self._servers,
            "group.id": group,
            "key.deserializer": _TEXT,
            "value.deserializer": _TEXT,
            "max.poll.records": 5,
        }
        properties = self._client._properties(defaults)
        consumer = self.jvm.org.apache.kafka.clients.consumer.KafkaShareConsumer(properties)
        consumer.subscribe([topic])
        self._poll(consumer)
        consumer.commitSync()
        return consumer

    def _poll(self, consumer: JavaObject) -> None:
        deadline = time.monotonic() + _SECONDS
        timeout = self.jvm.java.time.Duration.ofMillis(200)
        while not consumer.poll(timeout).count():
            if time.monotonic() > deadline:
                message = f"the consumer has read nothing in {_SECONDS} s"
                raise RuntimeError(message)

    def transactions(self, group: str, source: str, target: str) -> None:
        """Commit offsets of a group in transactions: committed, aborted, and left open."""
        metadata = self.jvm.org.apache.kafka.clients.consumer.ConsumerGroupMetadata(group)
        for name, offset, end in (
            ("bill-1", 4, "commit"),
            ("bill-1", 8, "abort"),
            ("bill-2", 12, "commit"),
            ("bill-3", 16, ""),
        ):
            producer = self._client.transactional_producer(name, transaction_timeout_ms=600000)
            producer.begin()
            producer.send(target, [Outgoing(b"k", b"v", partition=offset % 2)])
            offsets = self._offsets({(source, 0): offset}, name)
            producer._producer.sendOffsetsToTransaction(offsets, metadata)
            if end:
                producer.end(end)
            else:
                # The commit is in the log once the broker has answered it.
                producer._producer.flush()
