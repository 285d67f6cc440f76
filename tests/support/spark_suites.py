"""Cases of Spark's own suites for ``kafka``, and the tests here that show the same.

Suites of ``connector/kafka-0-10-sql``, as of Spark 4.3 and, for topics with a word in a map of
offsets, its master.  The cases have our names.  A value is a test, as pytest names it below
``tests``; several tests, each of a part of the case; or an `Unfit`, with the reason.  Cases that
Spark runs once for each of its offset readers or source versions stand here once.
"""

from typing import NamedTuple

__all__ = ["SUITES", "Unfit"]


class Unfit(NamedTuple):
    """A case that does not apply here."""

    reason: str


_NO_EXECUTORS = Unfit("a Python data source cannot name the executor of a task")
_ONE_VERSION = Unfit("the choice between two versions of Spark's own source")

_BOTH = "interop/test_both_sources.py::"
_RANDOM, _REFUSED = f"{_BOTH}test_random_options", f"{_BOTH}test_refusals_mean_the_same"
_GROWS = f"{_BOTH}test_the_same_data_frames_see_what_a_topic_has_become"
_READ = "connector/reads/"
_OPTION = "connector/options/"
_TIMES = f"{_OPTION}test_timestamps.py::"
_BY_TIME = f"{_TIMES}test_ranges_by_time"
_OFFSETS = f"{_OPTION}test_offsets.py::"
_OPTIONS = f"{_OPTION}test_read_options.py::"
_TASK = f"{_READ}test_task.py::"
_READER = f"{_READ}test_reader.py::"
_PLANNER = f"{_READ}test_planner.py::"
_BROKERS = f"{_READ}test_broker_directories.py::"
_RANGES = f"{_READ}test_offset_ranges.py::"
_STREAM = "connector/writes/test_stream.py::"
_STREAMED = f"{_READ}test_stream.py::"
_FOLLOWED = f"{_READ}test_followed.py::"
_LIMITS = f"{_READ}test_limits.py::"
_STREAM_OFFSETS = f"{_READ}test_stream_offsets.py::"
_INITIAL = f"{_READ}test_initial_offsets.py::"
_SWITCHED = "interop/test_switched_streams.py::"
_CUTS = f"{_RANGES}test_the_cases_of_spark"

SUITES: dict[str, dict[str, str | tuple[str, ...] | Unfit]] = {
    "KafkaRelationSuite": {
        "earliest to latest, and the same frame after an append": (
            _GROWS,
            f"{_READER}test_a_data_frame_that_is_bound_late_sees_new_records",
        ),
        "neither a start nor an end given": (
            f"{_READER}test_all_topics_but_internal_ones_are_read",
            "interop/test_live.py::test_rows_equal_those_of_sparks_kafka_source",
        ),
        "a map with -2, -1 and numbers; a number does not move, -1 does": (
            _GROWS,
            f"{_TASK}test_a_snapshot_does_not_grow_and_a_late_end_does",
        ),
        "headers: none is null, several, one key twice": (
            "interop/test_live.py::test_rows_equal_those_of_sparks_kafka_source"
        ),
        "both bounds by a timestamp for each partition": (_BY_TIME, _RANDOM),
        "start by timestamps, end by offsets": (_BY_TIME, _RANDOM),
        "start by offsets, end by timestamps": (_BY_TIME, _RANDOM),
        "only the start by timestamps": (_BY_TIME, _RANDOM),
        "only the end by timestamps": (_BY_TIME, _RANDOM),
        "both bounds by one timestamp for all": (
            _BY_TIME, _RANDOM, f"{_READER}test_a_read_by_time",
        ),
        "every record is older than the start of one partition": (
            f"{_TIMES}test_a_start_after_every_record_is_an_error",
            f"{_TIMES}test_a_start_after_every_record_may_be_the_end",
            _REFUSED,
        ),
        "every record is older than the end of one partition": (
            f"{_TIMES}test_an_end_after_every_record_is_the_end_of_the_log",
            _BY_TIME,
        ),
        "which of several starts comes first": (
            f"{_TIMES}test_a_time_for_all_comes_before_a_map_and_a_map_before_offsets",
            f"{_OPTIONS}test_an_option_of_lower_precedence_is_not_even_parsed",
        ),
        "a frame in a union with itself": (
            f"{_READER}test_a_data_frame_joined_with_itself_and_in_a_union"
        ),
        "a frame whose oldest records have been deleted since": (
            _GROWS,
            f"{_TASK}test_a_read_from_earliest_follows_retention_in_silence",
        ),
        "bad options: a start at latest": (
            f"{_OFFSETS}test_a_start_at_latest_is_refused", _REFUSED,
        ),
        "bad options: a start at -1": f"{_OFFSETS}test_the_refusal_names_the_partition",
        "bad options: an end at earliest": (
            f"{_OFFSETS}test_an_end_at_earliest_is_refused", _REFUSED,
        ),
        "bad options: an end at -2": f"{_OFFSETS}test_the_refusal_names_the_partition",
        "bad options: no topics chosen, which here means all": (
            f"{_READER}test_all_topics_but_internal_ones_are_read"
        ),
        "bad options: topics chosen in two ways": (
            f"{_OPTIONS}test_only_one_way_to_choose_topics_can_be_given", _REFUSED,
        ),
        "bad options: empty assign, subscribe or subscribePattern": (
            f"{_OFFSETS}test_another_form_of_assign_is_refused_with_an_example",
            f"{_OPTIONS}test_subscribing_to_nothing_is_refused",
            f"{_OPTIONS}test_a_pattern_that_is_none_is_refused",
            _REFUSED,
        ),
        "read_committed: nothing open, nothing aborted": (
            "interop/test_transactions.py::test_rows_equal_the_consumers",
            "interop/test_transactions.py::test_spark_reads_what_was_committed",
            _RANDOM,
        ),
        "read_uncommitted: every record, and no marker": (
            "interop/test_transactions.py::test_rows_equal_the_consumers",
            f"{_BROKERS}test_end_markers_and_aborted_records_are_no_data_loss",
        ),
        "minPartitions above the number of partitions, and the same frame after an append": (
            _GROWS,
            f"{_READER}test_as_many_tasks_as_asked_for",
        ),
        "start and end name different partitions": (
            f"{_OPTIONS}test_two_maps_that_do_not_fit_together_are_refused", _REFUSED,
        ),
        "a start beyond its end, both numbers": (
            f"{_OPTIONS}test_two_maps_that_do_not_fit_together_are_refused", _REFUSED,
        ),
        "a start beyond an end that a timestamp has given": (
            f"{_TIMES}test_a_start_beyond_its_end_is_refused_once_both_are_known", _REFUSED,
        ),
        "a start beyond the latest record": _REFUSED,
        "which version of the source is used": _ONE_VERSION,
    },
    "KafkaOffsetReaderSuite": {
        "no isolation level": f"{_OPTIONS}test_reading_uncommitted_is_the_default",
        "read_uncommitted": f"{_OPTIONS}test_reading_uncommitted_is_the_default",
        "read_committed": f"{_OPTIONS}test_reading_committed_data_can_be_asked_for",
        "another isolation level": (f"{_OPTIONS}test_how_to_read_is_checked", _REFUSED),
        "minPartitions, between two numbers": (
            f"{_PLANNER}test_the_ranges_of_spark_s_offset_reader"
        ),
        "minPartitions, from earliest to latest": (
            f"{_PLANNER}test_the_ranges_of_spark_s_offset_reader"
        ),
        "minPartitions, over two partitions": (
            f"{_PLANNER}test_the_ranges_of_spark_s_offset_reader"
        ),
        "minPartitions, numbers at both ends of two partitions": (
            f"{_PLANNER}test_the_ranges_of_spark_s_offset_reader"
        ),
        "offsets for two of three partitions": (
            f"{_OFFSETS}test_a_map_names_exactly_the_partitions_that_are_read", _REFUSED,
        ),
        "timestamps for two of three partitions": (
            f"{_TIMES}test_a_map_names_exactly_the_partitions_that_are_read[2]", _REFUSED,
        ),
        "timestamps for four of three partitions": (
            f"{_TIMES}test_a_map_names_exactly_the_partitions_that_are_read[4]"
        ),
    },
    "KafkaOffsetRangeCalculatorSuite": {
        "no minPartitions": f"{_CUTS}[one]",
        "no minPartitions, an empty range": f"{_RANGES}test_ranges_without_offsets_are_left_out",
        "as many partitions as minPartitions": f"{_CUTS}[three tasks for three partitions]",
        "the same, with executors": _NO_EXECUTORS,
        "one partition in four": f"{_CUTS}[one to four]",
        "a large partition beside a small one": f"{_CUTS}[skewed]",
        "an empty range, and one to divide": f"{_RANGES}test_ranges_without_offsets_are_left_out",
        "a very large partition beside a very small one": f"{_CUTS}[very skewed]",
        "fewer than there are partitions": f"{_CUTS}[fewer tasks than partitions]",
        "ten offsets in three": f"{_CUTS}[no exact multiple]",
        "an empty range beside two that are divided": (
            f"{_RANGES}test_ranges_without_offsets_do_not_count_as_tasks"
        ),
        "more ranges than asked for, and no offset lost": (
            f"{_CUTS}[more than asked for]",
            f"{_RANGES}test_no_offset_is_lost_or_read_twice",
        ),
        "three that are divided": f"{_CUTS}[none small]",
        "one that stays whole beside two": f"{_CUTS}[one small]",
        "two that stay whole beside one": f"{_CUTS}[two small]",
        "preferred executors of whole ranges": _NO_EXECUTORS,
        "none for divided ranges; the ranges": f"{_CUTS}[one of three divided]",
        "maxRecordsPerPartition, no more than it": (
            f"{_CUTS}[exactly the allowed records]", f"{_CUTS}[fewer records]",
        ),
        "maxRecordsPerPartition, more than it": f"{_CUTS}[more records]",
        "maxRecordsPerPartition, three partitions": f"{_CUTS}[three partitions]",
        "maxRecordsPerPartition, and a low minPartitions": f"{_CUTS}[records, then few tasks]",
        "maxRecordsPerPartition, and a high minPartitions": f"{_CUTS}[records, then many tasks]",
    },
    "KafkaDontFailOnDataLossSuite": {
        "batch: a start at 0 whose records are gone, each other record once": (
            f"{_BROKERS}test_a_start_below_the_log_start_is_data_loss",
            f"{_TASK}test_deleted_records_may_be_skipped",
            _RANDOM,
        ),
        "streams: the same": (
            f"{_FOLLOWED}test_a_start_that_retention_has_moved_before_a_repeat",
            f"{_FOLLOWED}test_each_start_with_each_choice_of_topics",
        ),
        "topics that are made, deleted and created again at random": (
            f"{_TASK}test_topics_that_come_and_go_fail_no_read_that_may_lose_data",
            f"{_TASK}test_a_topic_that_was_made_again_is_another_topic",
        ),
    },
    "KafkaSourceProviderSuite": {
        "batch: names of options in any case": (
            f"{_OPTIONS}test_names_are_taken_in_any_case", _RANDOM,
        ),
        "micro-batches and continuous mode: the same": (
            f"{_OPTIONS}test_names_are_taken_in_any_case"
        ),
    },
    "KafkaMicroBatchSourceSuite": {
        "asynchronous progress tracking": f"{_STREAMED}test_progress_is_tracked_asynchronously",
        "AvailableNow with a limit": f"{_STREAMED}test_restarts_neither_lose_nor_repeat",
        "AvailableNow: partitions vanish": (
            f"{_FOLLOWED}test_available_now_fails_if_partitions_vanish",
            f"{_FOLLOWED}test_available_now_refuses_another_plan",
        ),
        "AvailableNow: an offset is no longer available": (
            f"{_FOLLOWED}test_available_now_fails_if_its_end_is_gone"
        ),
        "AvailableNow: an uncommitted batch, and new partitions": (
            f"{_FOLLOWED}test_available_now_repeats_a_micro_batch_before_its_first_poll"
        ),
        "initial offsets survive a restart": (
            f"{_STREAMED}test_a_restart_before_the_first_batch_looks_up_the_start_again",
            f"{_FOLLOWED}test_the_initial_offsets_are_kept",
        ),
        "a limit of Long.MaxValue": (
            f"{_LIMITS}test_partitions_share_a_limit_in_proportion_to_their_backlogs"
        ),
        "maxOffsetsPerTrigger, a restart, and Trigger.Once": (
            f"{_FOLLOWED}test_limits",
            f"{_LIMITS}test_partitions_share_a_limit_in_proportion_to_their_backlogs",
            f"{_STREAMED}test_once_ignores_limits",
        ),
        "minOffsetsPerTrigger and maxTriggerDelay": (
            f"{_LIMITS}test_a_micro_batch_waits_for_records_or_for_its_delay"
        ),
        "minOffsetsPerTrigger and maxOffsetsPerTrigger": (
            f"{_FOLLOWED}test_a_micro_batch_waits_for_enough_records"
        ),
        "numInputRows": f"{_STREAMED}test_a_running_query_follows_the_log",
        "a pattern, and a topic that is deleted": (
            f"{_FOLLOWED}test_a_checkpoint_beyond_the_log_is_noticed_at_the_next_poll"
        ),
        "an offset without partitions is not logged": Unfit(
            "a Python source has to return an offset, and returns {}: test_no_topic_matches_yet"
        ),
        "a topic that is made again with fewer records": (
            f"{_FOLLOWED}test_a_checkpoint_beyond_the_log_is_noticed_at_the_next_poll",
            f"{_STREAMED}test_a_shorter_log_is_an_error",
        ),
        "a word for a topic in the start; a topic that matches later": (
            f"{_FOLLOWED}test_starts",
            f"{_FOLLOWED}test_no_topic_matches_yet",
        ),
        "the bytes of the file of initial offsets, of old and of later versions": (
            f"{_INITIAL}test_the_file_has_the_bytes_of_kafka",
            f"{_INITIAL}test_a_file_of_the_first_version_is_read",
            f"{_INITIAL}test_a_damaged_file_is_refused",
        ),
        "a watermark on timestamp": f"{_STREAMED}test_event_time_and_state",
        "a topic is deleted while a task reads, and data may be lost": (
            f"{_TASK}test_topics_that_come_and_go_fail_no_read_that_may_lose_data"
        ),
        "a union of two sources with limits": (
            f"{_STREAMED}test_a_union_advances_both_of_its_sources"
        ),
        "groups of consumers": Unfit("there are no consumers"),
        "a self-join": f"{_STREAMED}test_columns_may_be_chosen",
        "transactions, three offsets at a time": (
            f"{_STREAMED}test_many_micro_batches_give_the_rows_of_a_batch_query"
        ),
        "the cache of fetched data": Unfit("there is no cache of consumers"),
        "null keys and values": f"{_STREAMED}test_event_time_and_state",
        "minPartitions": (
            f"{_FOLLOWED}test_small_slices_share_a_task",
            f"{_STREAMED}test_options_that_are_refused",
        ),
        "a timestamp that overflows": (
            "storage/format/records/test_one_pass.py::test_a_time_that_nobody_wants_may_be_far_off"
        ),
        "checkpoints without the option includeHeaders": (
            f"{_SWITCHED}test_a_query_moves_there_and_back_twice"
        ),
        "metrics of lag": Unfit("a Python source reports its latest offsets, and no metrics"),
        "each start with each choice of topics; restarts; new partitions": (
            f"{_FOLLOWED}test_each_start_with_each_choice_of_topics"
        ),
        "a start after every record": f"{_FOLLOWED}test_starts",
        "bad options": f"{_STREAMED}test_options_that_are_refused",
        "options of clients": f"{_STREAMED}test_options_that_are_refused",
        "values of options in any case": f"{_OPTIONS}test_names_are_taken_in_any_case",
        "types of columns": f"{_STREAMED}test_columns_may_be_chosen",
        "topics and partitions that come and go at random": (
            f"{_STREAMED}test_topics_and_partitions_that_come_and_go"
        ),
        "versions of the source, continuous mode, real-time mode": _ONE_VERSION,
    },
    "KafkaSourceOffsetSuite": {
        "offsets as JSON, there and back": (
            f"{_STREAM_OFFSETS}test_topics_and_partitions_have_one_order"
        ),
        "equal offsets have equal JSON": (
            f"{_STREAM_OFFSETS}test_topics_and_partitions_have_one_order"
        ),
        "offsets of partitions are compared one by one": (
            f"{_FOLLOWED}test_a_micro_batch_reads_what_came_since_the_last_one"
        ),
        "logs of older versions": f"{_SWITCHED}test_a_query_moves_there_and_back_twice",
    },
    "KafkaSinkMicroBatchStreamingSuite": {
        "rows with a topic column": f"{_STREAM}test_a_stream_writes_to_several_topics",
        "an aggregation with the option topic": (
            f"{_STREAM}test_complete_mode_appends_or_replaces_results"
        ),
        "the option topic overrides the column": f"{_STREAM}test_two_queries_write_to_one_topic",
        "rows without a topic or a value": (
            f"{_STREAM}test_columns_and_serializers_that_are_refused"
        ),
        "columns of other types": f"{_STREAM}test_columns_and_serializers_that_are_refused",
        "serializers": f"{_STREAM}test_columns_and_serializers_that_are_refused",
        "a topic that does not exist": Unfit("it is created; `autoCreateTopics` decides"),
        "progress has the number of rows": f"{_STREAM}test_a_stream_writes_to_several_topics",
    },
    "JsonUtilsSuite": {
        "partitions": f"{_OFFSETS}test_assigned_partitions_are_sorted_and_once",
        "offsets, also -1 and -2": (
            f"{_OFFSETS}test_offsets_are_given_by_partition",
            f"{_OFFSETS}test_a_topic_may_have_one_word_for_all_its_partitions",
        ),
        "a word for each topic": (
            f"{_OFFSETS}test_a_topic_may_have_one_word_for_all_its_partitions"
        ),
        "words and numbers, in any case": (
            f"{_OFFSETS}test_a_topic_may_have_one_word_for_all_its_partitions"
        ),
        "a topic in both forms": (
            f"{_OFFSETS}test_a_topic_with_a_word_and_with_partitions_is_refused"
        ),
        "other text is refused and shown": (
            f"{_OFFSETS}test_another_form_is_refused_with_an_example"
        ),
    },
    "ConsumerStrategySuite": {
        "a client for administration": Unfit("no broker is asked"),
        "assign: the partitions that are listed": (
            f"{_PLANNER}test_every_partition_of_the_topics_is_read"
        ),
        "assign: partitions that are not there are left out": (
            f"{_PLANNER}test_assigned_partitions_that_are_missing_cause_a_warning",
            f"{_PLANNER}test_of_a_topic_that_is_there_no_assigned_partition_need_be",
        ),
        "subscribe: every partition of the topics": (
            f"{_PLANNER}test_every_partition_of_the_topics_is_read"
        ),
        "subscribePattern: every partition of the topics that match": (
            f"{_PLANNER}test_every_partition_of_the_topics_is_read",
            f"{_OPTION}test_topic_pattern.py::test_a_pattern_selects_what_it_selects_in_java",
        ),
    },
}  # fmt: skip
