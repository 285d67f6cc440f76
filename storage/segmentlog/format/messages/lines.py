"""The schemas of the records that Kafka writes about itself, one a line, as of Kafka 4.4.0.

A line has the name of a message, its api key or record type, its versions, and its fields::

    Name [key] v0-4 flex 4+: field type…; Struct = {field type…}

``flex 4+`` are the flexible versions (KIP-482).  A field has a type, ``?`` if it may be null,
``v3+`` if only some versions have it, ``#0`` if it is a tagged field, and ``=-1`` if its default
is not zero or empty.  ``=<json null>`` is a default that the generator of Kafka ignores: the field
may be null, and its default is an empty value.  ``[T]`` is an array, ``{…}`` a struct.

The names are those of the JSON files in Kafka's jars (``common/message``, ``common/metadata``,
``message``).  The last ones are not in the JSON of 4.4.0: they come from that of 4.0.1, and from
``OffsetSync`` and ``Checkpoint`` of MirrorMaker 2, whose schemas are code.
"""

__all__ = [
    "METADATA",
    "OFFSETS",
    "OTHERS",
    "REMOTE_LOG",
    "SHARE_STATE",
    "TRANSACTIONS",
]

#: ``__consumer_offsets``.
OFFSETS = """
LegacyOffsetCommitKey [0] v0: group str, topic str, partition i32
LegacyOffsetCommitValue [0] v0: offset i64, metadata str, commitTimestamp i64
OffsetCommitKey [1] v0: group str, topic str, partition i32
OffsetCommitValue [1] v0-4 flex 4+: offset i64, leaderEpoch i32 v3+ =-1, metadata str, commitTimestamp i64, expireTimestamp i64 v1 =-1, topicId uuid v4+ #0
GroupMetadataKey [2] v0: group str
GroupMetadataValue [2] v0-4 flex 4+: protocolType str, generation i32, protocol str?, leader str?, currentStateTimestamp i64 v2+ =-1, members [MemberMetadata]; MemberMetadata = {memberId str, groupInstanceId str? v3+ =null, clientId str, clientHost str, rebalanceTimeout i32 v1+ =-1, sessionTimeout i32, subscription bytes, assignment bytes}
ConsumerGroupMetadataKey [3] v0: GroupId str
ConsumerGroupMetadataValue [3] v0 flex 0+: Epoch i32, MetadataHash i64 #0 =0
ConsumerGroupPartitionMetadataKey [4] v0: GroupId str
ConsumerGroupPartitionMetadataValue [4] v0 flex 0+: Topics [{TopicId uuid, TopicName str, NumPartitions i32, PartitionMetadata [{Partition i32, Racks [str]}]}]
ConsumerGroupMemberMetadataKey [5] v0: GroupId str, MemberId str
ConsumerGroupMemberMetadataValue [5] v0 flex 0+: InstanceId str?, RackId str?, ClientId str, ClientHost str, SubscribedTopicNames [str], SubscribedTopicRegex str?, RebalanceTimeoutMs i32 =-1, ServerAssignor str?, ClassicMemberMetadata {SessionTimeoutMs i32, SupportedProtocols [{Name str, Metadata bytes}]}? #0 =<json null>
ConsumerGroupTargetAssignmentMetadataKey [6] v0: GroupId str
ConsumerGroupTargetAssignmentMetadataValue [6] v0 flex 0+: AssignmentEpoch i32, AssignmentTimestamp i64 #0 =0
ConsumerGroupTargetAssignmentMemberKey [7] v0: GroupId str, MemberId str
ConsumerGroupTargetAssignmentMemberValue [7] v0 flex 0+: TopicPartitions [{TopicId uuid, Partitions [i32]}]
ConsumerGroupCurrentMemberAssignmentKey [8] v0: GroupId str, MemberId str
ConsumerGroupCurrentMemberAssignmentValue [8] v0 flex 0+: MemberEpoch i32, PreviousMemberEpoch i32, State i8, AssignedPartitions [TopicPartitions], PartitionsPendingRevocation [TopicPartitions]; TopicPartitions = {TopicId uuid, Partitions [i32], AssignmentEpochs [i32]? #0 =<json null>}
ShareGroupMemberMetadataKey [10] v0: GroupId str, MemberId str
ShareGroupMemberMetadataValue [10] v0 flex 0+: RackId str?, ClientId str, ClientHost str, SubscribedTopicNames [str]
ShareGroupMetadataKey [11] v0: GroupId str
ShareGroupMetadataValue [11] v0 flex 0+: Epoch i32, MetadataHash i64
ShareGroupTargetAssignmentMetadataKey [12] v0: GroupId str
ShareGroupTargetAssignmentMetadataValue [12] v0 flex 0+: AssignmentEpoch i32, AssignmentTimestamp i64 #0 =0
ShareGroupTargetAssignmentMemberKey [13] v0: GroupId str, MemberId str
ShareGroupTargetAssignmentMemberValue [13] v0 flex 0+: TopicPartitions [{TopicId uuid, Partitions [i32]}]
ShareGroupCurrentMemberAssignmentKey [14] v0: GroupId str, MemberId str
ShareGroupCurrentMemberAssignmentValue [14] v0 flex 0+: MemberEpoch i32, PreviousMemberEpoch i32, State i8, AssignedPartitions [TopicPartitions]; TopicPartitions = {TopicId uuid, Partitions [i32]}
ShareGroupStatePartitionMetadataKey [15] v0: GroupId str
ShareGroupStatePartitionMetadataValue [15] v0 flex 0+: InitializingTopics [TopicPartitionsInfo], InitializedTopics [TopicPartitionsInfo], DeletingTopics [TopicInfo]; TopicPartitionsInfo = {TopicId uuid, TopicName str, Partitions [i32]}; TopicInfo = {TopicId uuid, TopicName str}
ConsumerGroupRegularExpressionKey [16] v0: GroupId str, RegularExpression str
ConsumerGroupRegularExpressionValue [16] v0 flex 0+: Topics [str], Version i64, Timestamp i64
StreamsGroupMetadataKey [17] v0: GroupId str
StreamsGroupMetadataValue [17] v0 flex 0+: Epoch i32, MetadataHash i64, ValidatedTopologyEpoch i32 #0 =-1, LastAssignmentConfigs [LastAssignmentConfig]? #1 =<json null>, StoredDescriptionTopologyEpoch i32 #2 =-1, FailedDescriptionTopologyEpoch i32 #3 =-1; LastAssignmentConfig = {Key str, Value str}
StreamsGroupMemberMetadataKey [19] v0: GroupId str, MemberId str
StreamsGroupMemberMetadataValue [19] v0 flex 0+: InstanceId str?, RackId str?, ClientId str, ClientHost str, RebalanceTimeoutMs i32 =-1, TopologyEpoch i32, ProcessId str, UserEndpoint Endpoint? =null, ClientTags [KeyValue]; Endpoint = {Host str, Port u16}; KeyValue = {Key str, Value str}
StreamsGroupTargetAssignmentMetadataKey [20] v0: GroupId str
StreamsGroupTargetAssignmentMetadataValue [20] v0 flex 0+: AssignmentEpoch i32, AssignmentTimestamp i64 #0 =0
StreamsGroupTargetAssignmentMemberKey [21] v0: GroupId str, MemberId str
StreamsGroupTargetAssignmentMemberValue [21] v0 flex 0+: ActiveTasks [TaskIds], StandbyTasks [TaskIds], WarmupTasks [TaskIds]; TaskIds = {SubtopologyId str, Partitions [i32]}
StreamsGroupCurrentMemberAssignmentKey [22] v0: GroupId str, MemberId str
StreamsGroupCurrentMemberAssignmentValue [22] v0 flex 0+: MemberEpoch i32, PreviousMemberEpoch i32, State i8, ActiveTasks [TaskIds], StandbyTasks [TaskIds], WarmupTasks [TaskIds], ActiveTasksPendingRevocation [TaskIds], StandbyTasksPendingRevocation [TaskIds], WarmupTasksPendingRevocation [TaskIds]; TaskIds = {SubtopologyId str, Partitions [i32], AssignmentEpochs [i32]? #0 =<json null>}
StreamsGroupTopologyKey [23] v0: GroupId str
StreamsGroupTopologyValue [23] v0 flex 0+: Epoch i32, Subtopologies [{SubtopologyId str, SourceTopics [str], SourceTopicRegex [str], StateChangelogTopics [TopicInfo], RepartitionSinkTopics [str], RepartitionSourceTopics [TopicInfo], CopartitionGroups [{SourceTopics [i16], SourceTopicRegex [i16], RepartitionSourceTopics [i16]}]}]; TopicConfig = {key str, value str}; TopicInfo = {Name str, Partitions i32, ReplicationFactor i16, TopicConfigs [TopicConfig]}
"""

#: ``__transaction_state``.
TRANSACTIONS = """
TransactionLogKey [0] v0: TransactionalId str
TransactionLogValue [0] v0-1 flex 1+: ProducerId i64, PreviousProducerId i64 v1+ #0 =-1, NextProducerId i64 v1+ #1 =-1, ProducerEpoch i16, NextProducerEpoch i16 v1+ #3 =-1, TransactionTimeoutMs i32, TransactionStatus i8, TransactionPartitions [{Topic str, PartitionIds [i32]}]?, TransactionLastUpdateTimestampMs i64, TransactionStartTimestampMs i64, ClientTransactionVersion i16 v1+ #2 =0
"""

#: ``__share_group_state``.
SHARE_STATE = """
ShareSnapshotKey [0] v0: GroupId str, TopicId uuid, Partition i32
ShareSnapshotValue [0] v0 flex 0+: SnapshotEpoch i32, StateEpoch i32, LeaderEpoch i32, StartOffset i64, DeliveryCompleteCount i32 #0 =-1, CreateTimestamp i64, WriteTimestamp i64, StateBatches [{FirstOffset i64, LastOffset i64, DeliveryState i8, DeliveryCount i16}]
ShareUpdateKey [1] v0: GroupId str, TopicId uuid, Partition i32
ShareUpdateValue [1] v0 flex 0+: SnapshotEpoch i32, LeaderEpoch i32, StartOffset i64, DeliveryCompleteCount i32 #0 =-1, StateBatches [{FirstOffset i64, LastOffset i64, DeliveryState i8, DeliveryCount i16}]
"""

#: ``__remote_log_metadata``.
REMOTE_LOG = """
RemoteLogSegmentMetadataRecord [0] v0 flex 0+: RemoteLogSegmentId {TopicIdPartition {Name str, Id uuid, Partition i32}, Id uuid}, StartOffset i64, EndOffset i64, BrokerId i32, MaxTimestampMs i64, EventTimestampMs i64, SegmentLeaderEpochs [{LeaderEpoch i32, Offset i64}], SegmentSizeInBytes i32, CustomMetadata bytes? =null, RemoteLogSegmentState i8, TxnIndexEmpty bool #0
RemoteLogSegmentMetadataUpdateRecord [1] v0 flex 0+: RemoteLogSegmentId {TopicIdPartition {Name str, Id uuid, Partition i32}, Id uuid}, BrokerId i32, EventTimestampMs i64, CustomMetadata bytes? =null, RemoteLogSegmentState i8
RemotePartitionDeleteMetadataRecord [2] v0 flex 0+: TopicIdPartition {Name str, Id uuid, Partition i32}, BrokerId i32, EventTimestampMs i64, RemotePartitionDeleteState i8
RemoteLogSegmentMetadataSnapshotRecord [3] v0 flex 0+: SegmentId uuid, StartOffset i64, EndOffset i64, BrokerId i32, MaxTimestampMs i64, EventTimestampMs i64, SegmentLeaderEpochs [{LeaderEpoch i32, Offset i64}], SegmentSizeInBytes i32, CustomMetadata bytes? =null, RemoteLogSegmentState i8, TxnIndexEmpty bool #0
"""

#: ``__cluster_metadata`` and its snapshots.
METADATA = """
RegisterBrokerRecord [0] v0-4 flex 0+: BrokerId i32, IsMigratingZkBroker bool v2+ =false, IncarnationId uuid, BrokerEpoch i64, EndPoints [{Name str, Host str, Port u16, SecurityProtocol i16}], Features [{Name str, MinSupportedVersion i16, MaxSupportedVersion i16}], Rack str?, Fenced bool =true, InControlledShutdown bool v1+ =false, LogDirs [uuid] v3+ #0, CordonedLogDirs [uuid]? v4+ #1 =null
UnregisterBrokerRecord [1] v0 flex 0+: BrokerId i32, BrokerEpoch i64
TopicRecord [2] v0 flex 0+: Name str, TopicId uuid
PartitionRecord [3] v0-2 flex 0+: PartitionId i32 =-1, TopicId uuid, Replicas [i32], Isr [i32], RemovingReplicas [i32], AddingReplicas [i32], Leader i32 =-1, LeaderRecoveryState i8 #0 =0, LeaderEpoch i32 =-1, PartitionEpoch i32 =-1, Directories [uuid] v1+, EligibleLeaderReplicas [i32]? v2+ #1 =null, LastKnownElr [i32]? v2+ #2 =null
ConfigRecord [4] v0 flex 0+: ResourceType i8, ResourceName str, Name str, Value str?
PartitionChangeRecord [5] v0-2 flex 0+: PartitionId i32 =-1, TopicId uuid, Isr [i32]? #0 =null, Leader i32 #1 =-2, Replicas [i32]? #2 =null, RemovingReplicas [i32]? #3 =null, AddingReplicas [i32]? #4 =null, LeaderRecoveryState i8 #5 =-1, Directories [uuid]? v1+ #8 =null, EligibleLeaderReplicas [i32]? v2+ #6 =null, LastKnownElr [i32]? v2+ #7 =null
FenceBrokerRecord [7] v0 flex 0+: Id i32, Epoch i64
UnfenceBrokerRecord [8] v0 flex 0+: Id i32, Epoch i64
RemoveTopicRecord [9] v0 flex 0+: TopicId uuid
DelegationTokenRecord [10] v0 flex 0+: Owner str, Requester str, Renewers [str], IssueTimestamp i64, MaxTimestamp i64, ExpirationTimestamp i64, TokenId str
UserScramCredentialRecord [11] v0 flex 0+: Name str, Mechanism i8, Salt bytes, StoredKey bytes, ServerKey bytes, Iterations i32
FeatureLevelRecord [12] v0 flex 0+: Name str, FeatureLevel i16
ClientQuotaRecord [14] v0 flex 0+: Entity [{EntityType str, EntityName str?}], Key str, Value f64, Remove bool
ProducerIdsRecord [15] v0 flex 0+: BrokerId i32, BrokerEpoch i64 =-1, NextProducerId i64
BrokerRegistrationChangeRecord [17] v0-3 flex 0+: BrokerId i32, BrokerEpoch i64, Fenced i8 #0, InControlledShutdown i8 v1+ #1, LogDirs [uuid] v2+ #2, CordonedLogDirs [uuid]? v3+ #3 =null
AccessControlEntryRecord [18] v0 flex 0+: Id uuid, ResourceType i8, ResourceName str, PatternType i8, Principal str, Host str, Operation i8, PermissionType i8
RemoveAccessControlEntryRecord [19] v0 flex 0+: Id uuid
NoOpRecord [20] v0 flex 0+: (no fields)
ZkMigrationStateRecord [21] v0 flex 0+: ZkMigrationState i8
RemoveUserScramCredentialRecord [22] v0 flex 0+: Name str, Mechanism i8
BeginTransactionRecord [23] v0 flex 0+: Name str? #0 =null
EndTransactionRecord [24] v0 flex 0+: (no fields)
AbortTransactionRecord [25] v0 flex 0+: Reason str? #0 =null
RemoveDelegationTokenRecord [26] v0 flex 0+: TokenId str
RegisterControllerRecord [27] v0 flex 0+: ControllerId i32, IncarnationId uuid, ZkMigrationReady bool, EndPoints [{Name str, Host str, Port u16, SecurityProtocol i16}], Features [{Name str, MinSupportedVersion i16, MaxSupportedVersion i16}]
ClearElrRecord [28] v0 flex 0+: TopicName str
UnregisterControllerRecord [29] v0 flex 0+: ControllerId i32
"""

#: Control records, the file ``quorum-state``, and the bytes that consumers give to their group.
OTHERS = """
ConsumerProtocolAssignment v0-3: AssignedPartitions [{Topic str, Partitions [i32]}], UserData bytes? =null
ConsumerProtocolSubscription v0-3: Topics [str], UserData bytes? =null, OwnedPartitions [{Topic str v1+, Partitions [i32] v1+}] v1+, GenerationId i32 v2+ =-1, RackId str? v3+ =null
EndTxnMarker v0: CoordinatorEpoch i32
KRaftVersionRecord v0 flex 0+: Version i16, KRaftVersion i16
LeaderChangeMessage v0-1 flex 0+: Version i16, LeaderId i32, Voters [Voter], GrantingVoters [Voter]; Voter = {VoterId i32, VoterDirectoryId uuid v1+}
QuorumStateData v0-1 flex 0+: ClusterId str v0, LeaderId i32 =-1, LeaderEpoch i32 =-1, VotedId i32 =-1, VotedDirectoryId uuid v1+, AppliedOffset i64 v0, CurrentVoters [{VoterId i32 v0}]? v0
SnapshotFooterRecord v0 flex 0+: Version i16
SnapshotHeaderRecord v0 flex 0+: Version i16, LastContainedLogTimestamp i64
VotersRecord v0 flex 0+: Version i16, Voters [{VoterId i32, VoterDirectoryId uuid, Endpoints [{Name str, Host str, Port u16}], KRaftVersionFeature {MinSupportedVersion i16, MaxSupportedVersion i16}}]
"""


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
