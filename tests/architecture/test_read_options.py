"""All reads with all options of reads: each is taken with an effect, or refused by its name."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

import pyspark_segmentlog
import segmentlog
from segmentlog.declared import declared
from segmentlog.model import OnInvalidUtf8, ScanPolicy
from segmentlog.polars import scan_log
from segmentlog.read_options import (
    READ_OPTIONS,
    AuditOptions,
    BoundsOptions,
    DatasetOptions,
    LatestOptions,
    ScanOptions,
)

TABLE = pa.table({"partition": pa.array([], pa.int32()), "offset": pa.array([], pa.int64())})

#: The functions that read records, and the options that they take.
READS: Mapping[str, tuple[Callable[..., object], type]] = {
    "read": (segmentlog.read, DatasetOptions),
    "latest": (segmentlog.latest, LatestOptions),
    "dataset": (segmentlog.dataset, DatasetOptions),
    "scan_log": (lambda path, **given: scan_log(path, **given).collect(), DatasetOptions),
    "audit": (lambda path, **given: segmentlog.audit(path, "t", TABLE, **given), AuditOptions),
    "audit of Spark": (
        lambda path, **given: pyspark_segmentlog.audit(Mock(), path, "t", Mock(), **given),
        AuditOptions,
    ),
    "scan": (lambda path, **given: log_of(path).scan(**given).read_all(), ScanOptions),
    "bounds": (lambda path, **given: log_of(path).bounds(**given), BoundsOptions),
}


def log_of(path: str) -> segmentlog.Log:
    """The only log of a directory."""
    return segmentlog.open_log_dir(path).log("t", 0)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log in which one key is deleted, and after which others are written."""
    path = tmp_path_factory.mktemp("reads") / "logs"
    keys, values = [b"gone", b"kept", b"gone", b"last"], [b"1", b"2", None, b"3"]
    with segmentlog.open_writer(path, "t", num_partitions=1) as writer:
        writer.append(pa.table({"key": keys, "value": values}))
    return str(path)


@pytest.mark.parametrize("option", READ_OPTIONS)
@pytest.mark.parametrize("read", READS)
@pytest.mark.addition("option of reads")
def test_no_option_is_taken_silently(read: str, option: str, logs: str) -> None:
    """A value that no option takes is refused: by the option, or by a read that does not have it.

    An option that a read takes, and never looks at, would take this value, too.
    """
    call, taken = READS[read]
    is_of_tier = option.startswith("remote_storage_") and option in declared(taken)
    beside = {"remote_storage": "/t"} if is_of_tier else {}
    with pytest.raises(segmentlog.OptionError) as caught:
        call(logs, **beside, **{option: object()})

    assert option == caught.value.option
    assert isinstance(caught.value, segmentlog.ArgumentError) == (option not in declared(taken))


@pytest.mark.parametrize("option", declared(LatestOptions))
@pytest.mark.addition("option of reads")
def test_no_option_of_latest_brings_a_deleted_key_back(option: str, logs: str) -> None:
    """Nor does it hide a key that is there, unless the whole end of the log is left out."""
    shown = READ_OPTIONS[option].shown
    if isinstance(shown, dict):
        shown = dict.fromkeys([("t", 0)], 3)  # after the tombstone, or before the last record
    try:
        found = segmentlog.latest(logs, **{option: shown})
    except segmentlog.SegmentLogError:
        # There is no tier, no metadata of a cluster, no registry, and a batch of more than a byte.
        assert option.startswith(("remote_storage", "replicas", "max_inflated", "decode"))
        return

    keys = found["key"].to_pylist()
    assert not {b"gone", "gone"} & {*keys}
    assert {b"last", "last"} & {*keys} or option == "ending_offsets"


@pytest.mark.addition("option of reads")
def test_the_rules_of_a_scan_have_the_declared_defaults() -> None:
    """A scan without options is that of a read without options."""
    names = ScanPolicy._fields & READ_OPTIONS.keys()

    assert {"isolation_level", "spare_page_cache"} <= names
    assert {name: getattr(ScanPolicy(), name) for name in names} == {
        name: READ_OPTIONS[name].default for name in names
    }


def test_options_are_in_the_signature_and_in_the_docstring() -> None:
    """With the defaults of the function, and with all other options under their own names."""
    doc = segmentlog.audit.__doc__ or ""

    assert "    isolation_level : ``read_committed`` leaves out" in doc
    assert "**options" not in doc
    assert "_ : " not in (segmentlog.clone.__doc__ or "")  # a mark between its fields
    assert "(`on_invalid_utf8`" not in doc
    assert all(option.sentence[0] != "{" and option.idea for option in READ_OPTIONS.values())
    assert OnInvalidUtf8.NULL == READ_OPTIONS["on_invalid_utf8"].shown


def test_declarations_cost_nothing_at_import() -> None:
    """They load neither numpy nor pyarrow, and few modules at all."""
    code = (
        "import sys, segmentlog; n = len([*filter(None, sys.modules)]);"
        "from segmentlog.read_options import READ_OPTIONS;"
        "assert not {'numpy', 'pyarrow', 'pyspark'} & sys.modules.keys(), 'loads a library';"
        "print([each for each in sys.modules if each.startswith('segmentlog')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(segmentlog.__file__).parents[1],
    )

    assert len(done.stdout.split()) < 25
