"""Messages that the JSON of Kafka 4.4.0 does not have, in the notation of `lines`.

Sources: the JSON of Kafka 4.0.1; ``OffsetSync`` and ``Checkpoint`` of MirrorMaker 2, whose schemas
are code.
"""

# ruff: noqa: E501

#: Records of share groups in ``__consumer_offsets`` that Kafka 4.0 wrote in another form: 4.1
#: changed the bytes and not the version, and removed type 9.
OFFSETS_4_0 = """
ShareGroupPartitionMetadataKey [9] v0: GroupId str
ShareGroupPartitionMetadataValue [9] v0 flex 0+: Topics [{TopicId uuid, TopicName str, NumPartitions i32, PartitionMetadata [{Partition i32, Racks [str]}]}]
ShareGroupMetadataValue [11] v0 flex 0+: Epoch i32
ShareGroupStatePartitionMetadataValue [15] v0 flex 0+: InitializedTopics [TopicPartitionsInfo], DeletingTopics [TopicInfo]; TopicPartitionsInfo = {TopicId uuid, TopicName str, Partitions [i32]}; TopicInfo = {TopicId uuid, TopicName str}
"""

#: ``__share_group_state`` as Kafka 4.0 wrote it: 4.1 changed the bytes and not the version.
SHARE_STATE_4_0 = """
ShareSnapshotKey [0] v0: GroupId str, TopicId uuid, Partition i32
ShareSnapshotValue [0] v0 flex 0+: SnapshotEpoch u16, StateEpoch i32, LeaderEpoch i32, StartOffset i64, StateBatches [{FirstOffset i64, LastOffset i64, DeliveryState i8, DeliveryCount i16}]
ShareUpdateKey [1] v0: GroupId str, TopicId uuid, Partition i32
ShareUpdateValue [1] v0 flex 0+: SnapshotEpoch u16, LeaderEpoch i32, StartOffset i64, StateBatches [{FirstOffset i64, LastOffset i64, DeliveryState i8, DeliveryCount i16}]
"""

#: Topics of MirrorMaker 2; the value of a checkpoint has its version before it.
MIRROR = """
OffsetSyncKey v0: topic str, partition i32
OffsetSyncValue v0: upstreamOffset i64, offset i64
CheckpointKey v0: group str, topic str, partition i32
CheckpointValue v0: upstreamOffset i64, offset i64, metadata str
"""
