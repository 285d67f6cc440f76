"""Options of a write that are checked without Spark."""

import pytest

from pyspark_segmentlog.options.reference import READ_OPTIONS, TOPIC_SETTINGS
from pyspark_segmentlog.options.write_options import write_request
from segmentlog import ProducerConfig, TopicConfig
from segmentlog.errors import OptionError
from segmentlog.model import Codec
from segmentlog.writes import WriteRequest


def config(**options: str) -> ProducerConfig:
    """The config of a write, from option names that Python could not use as keywords."""
    raw = {name.replace("__", "."): value for name, value in options.items()}
    return write_request({"path": "/d", "topic": "t", **raw}).config


def test_the_level_is_that_of_the_codec_that_is_used() -> None:
    """The topic's codec decides, if it has one. Levels of other codecs do not matter."""
    levels = {"kafka__compression__gzip__level": "1", "kafka__compression__zstd__level": "15"}

    assert (Codec.NONE, None) == (config(**levels).batch_codec, config(**levels).level)
    for name in ("compression__type", "kafka__compression__type"):
        found = config(**levels, **{name: "gzip"})
        assert (Codec.GZIP, 1) == (found.batch_codec, found.level)
    found = config(**levels, compression__type="gzip", kafka__compression__type="zstd")
    assert (Codec.GZIP, 1) == (found.batch_codec, found.level)


def test_a_codec_without_levels_takes_none() -> None:
    """The level has no effect."""
    options = {"kafka__compression__type": "snappy", "kafka__compression__snappy__level": "3"}

    assert config(**options).level is None


def test_a_level_that_its_codec_does_not_have_is_refused_by_its_name() -> None:
    """The message names the option that was given."""
    with pytest.raises(OptionError, match=r"option 'kafka\.compression\.gzip\.level' is '15'"):
        config(compression__type="gzip", kafka__compression__gzip__level="15")


def test_no_bytes_are_a_size_where_they_mean_something() -> None:
    """In Kafka, a batch size of 0 makes batches of one or two records."""
    assert 0 == config(kafka__batch__size="0").batch_size
    assert config(kafka__max__request__size="0").max_request_size is None
    with pytest.raises(OptionError, match="64k; 0 for the smallest batches"):
        config(kafka__batch__size="x")
    with pytest.raises(OptionError, match=r"such as 64m$"):
        config(kafka__buffer__memory="0")


def test_settings_of_clients_for_reads_have_no_effect_on_writes() -> None:
    """Code for `kafka` gives one set of them to reads and to writes."""
    of_clients = [
        option.name
        for option in READ_OPTIONS
        if not option.used_by or option.name.startswith("kafka.")
    ]

    assert {"kafka.bootstrap.servers", "kafka.isolation.level"} < set(of_clients)
    for name in of_clients:
        assert config() == config(**{name: "any value"}), name
        assert config() == config(**{name.upper(): "any value"}), name


@pytest.mark.parametrize("text", ["", "  "])
def test_the_name_of_an_application_is_not_empty(text: str) -> None:
    """All applications without a name would share their versions."""
    numbered = {"path": "/d", "txnVersion": "1"}
    with pytest.raises(OptionError, match=r"option 'txnAppId' is .*; give a name"):
        write_request({**numbered, "txnAppId": text})

    assert ("app", 1) == write_request({**numbered, "txnAppId": " app "}).numbered


@pytest.mark.parametrize("name", ["kafka.key.serializer", "Kafka.Value.Serializer"])
def test_serializers_are_refused(name: str) -> None:
    """Spark's own sink refuses them, too."""
    with pytest.raises(OptionError, match=r"not supported: .* are written as they are"):
        config(**{name: "x"})


@pytest.mark.parametrize("name", ["subscribe", "minPartitions", "startingOffsets", "readUpTo"])
def test_an_option_of_reads_is_refused_as_one(name: str) -> None:
    """A view that was made for reading has such options."""
    with pytest.raises(OptionError, match=r"it is an option of reads.*VIEW sink") as refused:
        config(**{name: "1"})

    assert "numPartitions" not in str(refused.value)


def test_the_defaults_of_the_reference_are_those_of_the_engine() -> None:
    """The tables have defaults of options, and the engine has defaults of its settings."""
    request = write_request({"path": "/d"})
    settings = {
        option.name: option.default.strip("`")
        for option in TOPIC_SETTINGS
        if option.default != "no limit"
    }

    assert WriteRequest("/d") == request
    assert TopicConfig() == TopicConfig.parse(settings)
