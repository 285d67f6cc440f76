"""The commands that keep a log directory small: their options and their help."""

import sys
from typing import Annotated

import typer

from segmentlog.tools.arguments import (
    WRITES,
    Metadata,
    Partitions,
    Purge,
    ServerProperties,
    Topics,
    Yes,
    asking,
    examples,
    time_option,
)
from segmentlog.tools.completion import complete_topic

__all__ = ["add_upkeep"]

_Directory = Annotated[str, typer.Argument(metavar="DIR", help="A log directory.")]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting", "-s", metavar="NAME=VALUE", help="A topic setting; may be repeated."
    ),
]


def add_upkeep(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(
        rich_help_panel=WRITES,
        epilog=examples(
            "segmentlog retain /data/logs --dry-run",
            "segmentlog retain /data/logs --topic orders --yes",
            "segmentlog retain /var/lib/kafka --server-properties /etc/kafka/server.properties",
            "segmentlog retain /data/logs -s retention.ms=86400000 -s retention.bytes=1073741824",
        ),
    )(retain)
    app.command(
        rich_help_panel=WRITES,
        epilog=examples(
            "segmentlog compact /data/logs --dry-run",
            "segmentlog compact /data/logs --topic customers",
            "segmentlog compact /data/logs -s min.cleanable.dirty.ratio=0.1",
            "segmentlog compact /data/logs --roll --purge --yes",
        ),
    )(compact)
    app.command(
        "delete-records",
        rich_help_panel=WRITES,
        epilog=examples(
            "segmentlog delete-records /data/logs --topic orders --partition 0 --offset 1500",
            "segmentlog delete-records /data/logs --topic orders --before 2026-03-01",
        ),
    )(delete_records)
    app.command(
        rich_help_panel=WRITES,
        epilog=examples(
            "segmentlog configure /data/logs -s segment.bytes=67108864",
            "segmentlog configure /data/logs --topic orders -s retention.ms=86400000",
            "segmentlog configure /data/logs --topic orders --remove retention.ms",
        ),
    )(configure)


def retain(
    directory: _Directory,
    topic: Topics = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and change nothing.")
    ] = False,
    setting: _Settings = None,
    metadata: Metadata = None,
    server_properties: ServerProperties = None,
    kafka_defaults: Annotated[
        bool,
        typer.Option(
            "--kafka-defaults",
            help="Limits that are not set are Kafka's: a week, and no limit of bytes.",
        ),
    ] = False,
    purge: Purge = False,
    yes: Yes = False,
) -> None:
    """Remove the old segments that a broker's retention would remove, and say why.

    Segments below the log start go, and then, if cleanup.policy has delete, those beyond
    retention.bytes and those older than retention.ms. Nothing may be running on the directory.
    Settings are those of the topic: `describe --settings` lists them. A limit that nobody has set
    removes nothing: a broker may have it in its server.properties, and a backup has no settings.
    """
    from segmentlog.tools.upkeep import parse_settings, retain_and_tell

    retain_and_tell(
        directory,
        topic or (),
        parse_settings(setting or ()),
        sys.stdout.write,
        dry_run=dry_run,
        metadata=metadata,
        server_properties=server_properties,
        kafka_defaults=kafka_defaults,
        purge=purge,
        ask=asking(yes=yes),
    )


def compact(
    directory: _Directory,
    topic: Topics = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be compacted, and change nothing.")
    ] = False,
    setting: _Settings = None,
    dedupe_buffer_bytes: Annotated[
        int,
        typer.Option(
            metavar="BYTES",
            help="Memory for keys, 24 bytes each; a log with more keys takes several passes.",
        ),
    ] = 128 << 20,
    metadata: Metadata = None,
    server_properties: ServerProperties = None,
    roll: Annotated[
        bool, typer.Option("--roll", help="Close active segments first: only closed ones count.")
    ] = False,
    purge: Purge = False,
    yes: Yes = False,
) -> None:
    """Keep the last record of each key, as a broker's log cleaner does.

    The topics are those whose cleanup.policy has compact. A log is compacted up to its active
    segment, once the share of bytes that were never compacted is above min.cleanable.dirty.ratio.
    Nothing may be running on the directory. Settings are those of the topic: `describe --settings`
    lists them.
    """
    from segmentlog.tools.upkeep import compact_and_tell, parse_settings

    compact_and_tell(
        directory,
        topic or (),
        parse_settings(setting or ()),
        sys.stdout.write,
        dry_run=dry_run,
        dedupe_buffer_bytes=dedupe_buffer_bytes,
        metadata=metadata,
        server_properties=server_properties,
        roll=roll,
        purge=purge,
        ask=asking(yes=yes),
    )


def delete_records(
    directory: _Directory,
    topic: Annotated[
        str, typer.Option("--topic", help="Its name.", autocompletion=complete_topic)
    ],
    partition: Partitions = None,
    offset: Annotated[
        int | None, typer.Option(help="The first offset that stays; -1 for the high watermark.")
    ] = None,
    before: Annotated[int | None, time_option("Records before this time go.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, and change nothing.")
    ] = False,
    purge: Purge = False,
    yes: Yes = False,
) -> None:
    """Delete the records of partitions below an offset, or before a time.

    The log start moves there, and segments below it go. Records that share a segment with later
    ones are hidden until their segment goes. Nothing may be running on the directory.
    """
    from segmentlog.tools.upkeep import delete_records_and_tell

    delete_records_and_tell(
        directory,
        topic,
        partition or (),
        sys.stdout.write,
        offset=offset,
        before=before,
        dry_run=dry_run,
        purge=purge,
        ask=asking(yes=yes),
    )


def configure(
    directory: _Directory,
    topic: Annotated[
        str | None,
        typer.Option("--topic", help="Only of this topic.", autocompletion=complete_topic),
    ] = None,
    setting: _Settings = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", help="A setting to forget; may be repeated.")
    ] = None,
) -> None:
    """Keep settings of topics in a directory without a broker, and list them.

    Writers, retention and compaction follow them; without --topic, they are defaults of all
    topics. The settings of a broker's topics are changed with kafka-configs.sh.
    """
    from segmentlog.tools.upkeep import configure_and_tell, parse_settings

    configure_and_tell(
        directory, topic, parse_settings(setting or ()), remove or (), sys.stdout.write
    )
