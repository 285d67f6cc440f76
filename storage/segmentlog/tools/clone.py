"""``segmentlog clone``: a topic under another name, with other partitions, or masked."""

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from functools import partial, wraps
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

import segmentlog
from segmentlog.errors import OptionError
from segmentlog.maintain.cloning.clone import (
    Clone,
    ClonedGroup,
    ClonedPartition,
    CloneSettings,
    Transform,
)
from segmentlog.maintain.restoration.restore import offsets_csv
from segmentlog.masking import without_credentials
from segmentlog.model import Codec, ReadUpTo
from segmentlog.store.durable import OutputFile
from segmentlog.store.paths import readable_path
from segmentlog.store.readable import is_file
from segmentlog.tools import arguments
from segmentlog.tools.failures import Failed
from segmentlog.tools.output import complain, counted, escape, json_fields, write_json
from segmentlog.tools.produce import Compression
from segmentlog.tools.progress import progress
from segmentlog.tools.report import Report

_IDS = "OLD=NEW"


@arguments.command(
    "segmentlog clone /var/lib/kafka orders orders-v2 --to /data/logs --partitions 24",
    "segmentlog clone /b1 /b2 /b3 orders orders-test --to /data/logs --transform masks.py:mask",
    "segmentlog clone /var/lib/kafka orders orders-test --to /data/logs --mask value.email",
    "segmentlog clone /var/lib/kafka orders orders-v2 --partitions 24 --offsets groups.csv",
)
@arguments.tiered
@arguments.flags(
    CloneSettings,
    "to",
    "num_partitions",
    "order",
    "null_keys",
    "keep_offsets",
    "since",
    "until",
    "read_up_to",
    "open_transactions",
    "on_corrupt_batch",
    "overwrite",
    "show_keys",
    "offset_map",
    "decode_schemas",
    "decode_frame",
    "settings",
    "dry_run",
    read_up_to=ReadUpTo.LOG_END,
)
def clone(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR... TOPIC NEW",
            help="The log directories of the source, the topic, and the name of the clone.",
        ),
    ],
    tier: arguments.Tier,
    given: dict[str, Any],
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="A Python function that changes record batches of pyarrow, or leaves out rows.",
        ),
    ] = None,
    mask_credentials: Annotated[
        bool,
        typer.Option(
            help="Hide passwords and tokens in values that are text: in URLs, and in parameters "
            "with such names."
        ),
    ] = False,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD[=VALUE]",
            help="Hide a field of values or keys that a registry's serializers have written, such "
            "as value.email or value.items[].sku, or give it another value; may be repeated.",
        ),
    ] = None,
    schema_id: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_IDS,
            help="An id, or a GUID, of a schema of values in "
            "the old registry and in the new one; may be repeated.",
        ),
    ] = None,
    key_schema_id: Annotated[
        list[str] | None, typer.Option(metavar=_IDS, help="The same for keys.")
    ] = None,
    codec: Annotated[
        Compression | None,
        typer.Option(
            "--codec",
            "-z",
            help="The codec of the record batches.",
            show_default="that of the source",
        ),
    ] = None,
    offsets: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the places of groups in the clone, for kafka-consumer-groups.sh.",
        ),
    ] = None,
    as_json: arguments.JsonLines = False,
) -> None:
    """Clone a topic: under another name, with other partitions, another codec, or masked.

    The clone becomes visible as a whole or not at all. Each key keeps the order of its records,
    and records keep their times and headers. A command that was killed can be run again.
    """
    message = "give log directories, the topic, and the name of the clone"
    if len(paths) < 3 and not any(tier):
        raise typer.BadParameter(message, param_hint="DIR... TOPIC NEW")
    located = tier.beside(paths[:-2])  # an error of the tier's options comes first
    if len(paths) < 2:
        raise typer.BadParameter(message, param_hint="DIR... TOPIC NEW")
    topic, new_topic = paths[-2:]
    arguments.refuse_one_file(offsets, given["offset_map"])
    dry_run = given["dry_run"]
    is_one = len(located) == 1
    source = segmentlog.open_log_dir(*located) if is_one else segmentlog.open_replicas(*located)
    with contextlib.ExitStack() as stack:
        file = None if offsets is None else stack.enter_context(OutputFile("offsets", offsets))
        bar = stack.enter_context(progress("records cloned", None, is_bytes=False))
        found = segmentlog.clone(
            source,
            topic,
            new_topic,
            **given,
            transform=_transform(transform, masks=mask_credentials),
            mask=_masks(mask),
            schema_ids=_ids("--schema-id", schema_id),
            key_schema_ids=_ids("--key-schema-id", key_schema_id),
            codec=None if codec is None else Codec[codec.name],
            on_records=bar.advance,
            on_phase=bar.name,
        )
        text, command_line = offsets_csv(found.offsets, offsets)
        if file is not None:
            try:
                file.file.write(text.encode())
                file.finish()
                file.publish()
            except OSError:
                if not dry_run:
                    complain(
                        f"{new_topic} is there, without the places of groups: they are also "
                        "written with --dry-run, and --to with a directory that does not exist"
                    )
                raise
    is_changed = transform is not None or mask_credentials or bool(mask)
    _write(found, as_json=as_json, dry_run=dry_run, is_changed=is_changed)
    if offsets is not None and not (found.groups or found.unread_groups):
        complain(f"{offsets} is empty: no group has committed an offset in {topic}")
    elif offsets is not None:
        sys.stderr.write(f"{escape(command_line)}\n")
    if found.unknown_schema_ids:
        ids = ", ".join(map(str, found.unknown_schema_ids))
        complain(f"ids of schemas that stay, because no option names them: {ids}")
    Failed(names=found.unread_groups).end()


def _write(found: Clone, *, as_json: bool, dry_run: bool, is_changed: bool) -> None:
    """A line for each partition and each group, and what a transform has changed."""
    n_keys, n_values = found.n_changed_keys, found.n_changed_values
    if as_json and is_changed:
        counts = {"changedKeys": n_keys, "changedValues": n_values, "leftOut": found.n_left_out}
        write_json({**counts, "dryRun": dry_run})

    def row(each: ClonedPartition | ClonedGroup) -> dict[str, object]:
        return {**json_fields(each), "dryRun": dry_run}

    Report(partial(_cloned, dry_run=dry_run), row, as_json=as_json).show_all(found.partitions)
    Report(_group, row, as_json=as_json).show_all(found.groups)
    if as_json:
        return
    if is_changed:
        changed = f"{counted(keys=n_keys)} and {counted(values=n_values)}"
        sys.stdout.write(f"{changed} {'would be ' if dry_run else ''}changed\n")
    if found.n_left_out:
        sys.stdout.write(f"{counted(records=found.n_left_out)} left out\n")


def _cloned(found: ClonedPartition, *, dry_run: bool) -> str:
    start, end = found.log_start_offset, found.log_end_offset
    records = f"{'would have ' if dry_run else ''}{counted(records=found.n_records)}"
    return f"{escape(f'{found.topic}-{found.partition}')}: {records}, [{start}, {end})"


def _group(found: ClonedGroup) -> str:
    read = f"has read {counted(records=found.n_read)}, and repeats {found.n_repeated:,}"
    return f"group {escape(found.group)}: {read}"


def _masks(given: Sequence[str] | None) -> dict[str, str | None]:
    """Fields, and the other values of those that are given one."""
    found: dict[str, str | None] = {}
    for each in given or ():
        path, sign, value = each.partition("=")
        if path in found:
            raise OptionError("--mask", each, f"{path} is given twice")
        found[path] = value if sign else None
    return found


def _ids(option: str, given: Sequence[str] | None) -> dict[int | str, int | str]:
    """Ids as ``17=42``, or GUIDs."""
    found: dict[int | str, int | str] = {}
    for each in given or ():
        old, sign, new = each.partition("=")
        if not sign:
            raise OptionError(option, each, "give the old and the new id: 17=42")
        numbers = [int(id_) if id_.isascii() and id_.isdecimal() else id_ for id_ in (old, new)]
        if numbers[0] in found:
            raise OptionError(option, each, f"{old} is given twice")
        found[numbers[0]] = numbers[1]
    return found


def _transform(given: str | None, *, masks: bool) -> Transform | None:
    """The function that the options name."""
    found = None if given is None else _function(given)
    if not masks:
        return found
    if found is None:
        return _masked

    @wraps(found)
    def masked(batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        return _masked(found(batch))

    return masked


def _function(given: str) -> Transform:
    path, _, name = given.rpartition(":")
    accepted = "give a file and a function in it: masks.py:mask"
    spec = importlib.util.spec_from_file_location("segmentlog_transform", path) if path else None
    if spec is None or spec.loader is None or not is_file(readable_path(path)):
        raise OptionError("--transform", given, accepted)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise OptionError("--transform", given, f"{path} cannot be loaded: {said}") from error
    found: Transform | None = getattr(module, name, None)
    if not callable(found):
        raise OptionError("--transform", given, f"{path} has no function {name!r}; {accepted}")
    return found


def _masked(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """The rows, without credentials in values that are text."""
    values = pc.cast(batch["value"], pa.binary())
    # A credential is a part of a URL, or follows a sign.
    may_have = pc.fill_null(pc.match_substring_regex(values, "[@=:]"), False)
    masked = [_without_credentials(each) for each in values.filter(may_have).to_pylist()]
    changed = pc.replace_with_mask(values, may_have, pa.array(masked, pa.binary()))
    return batch.set_column(batch.schema.get_field_index("value"), "value", changed)


def _without_credentials(value: bytes) -> bytes:
    try:
        return without_credentials(value.decode()).encode()
    except UnicodeDecodeError:
        return value
