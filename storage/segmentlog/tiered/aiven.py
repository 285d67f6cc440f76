"""The layout of Aiven's plugin: a tier's segments, found and read by their manifests.

The manifest is uploaded last, so segments without one are not complete and are left out.  Deletion
removes the three objects in any order, so the manifest is always read first.
"""

import logging
import stat
import threading
from collections.abc import Collection
from typing import NamedTuple

from segmentlog.errors import RemoteSegmentError
from segmentlog.store.readable import (
    FileType,
    ReadableFile,
    list_entries,
    list_names,
    open_file,
    survey,
)
from segmentlog.store.remote.requests import side_by_side
from segmentlog.tiered.aiven_manifest import (
    ENCRYPTION_BYTES,
    MANIFEST_SUFFIX,
    MOST_MANIFEST_BYTES,
    ChunkIndex,
    CustomMetadata,
    Manifest,
    SegmentKey,
    parse_custom_metadata,
    parse_key,
    parse_manifest,
)
from segmentlog.tiered.chunked_file import ChunkedFile, KeyFiles, SectionFile, Unwrapped
from segmentlog.tiered.layout import RemoteFileKind, RemoteLog, RemoteObject, RemoteSegment

#: Names in the manifest of the parts of a segment that lie in the object of indexes.
_INDEXES = {
    RemoteFileKind.OFFSET_INDEX: "offset",
    RemoteFileKind.TIME_INDEX: "timestamp",
    RemoteFileKind.TRANSACTION_INDEX: "transaction",
    RemoteFileKind.SNAPSHOT: "producerSnapshot",
    RemoteFileKind.LEADER_EPOCHS: "leaderEpoch",
}

_ID_CHARACTERS = 22  #: of a topic id in base64

_RESTORE = "restore the object, or plan from newer metadata"
_ONE_UPLOAD = "restore the three objects of the segment from one upload"
_FOREIGN = "check that remoteStorage is the prefix of the tier, and its layout aiven"


logger = logging.getLogger(__name__)


class _Opened(NamedTuple):
    """A segment whose manifest was read; its key is unwrapped when it is needed."""

    main: str
    manifest_path: str
    manifest: Manifest


class AivenTier:
    """The segments that Aiven's plugin has stored under one prefix; see `Layout`.

    `root`: path or URL, in the form of a path, of the plugin's ``key.prefix``.  `key_file`: PEM
    file of the private key, or ``id=path`` pairs with commas between; empty for a tier without
    encryption.
    """

    def __init__(self, root: str, key_file: str = "") -> None:
        self._root = root.rstrip("/")
        self._keys = KeyFiles.parse(key_file)
        # Threads share a tier.  The first of them lists it, under the lock, for all.
        self._folders: dict[RemoteLog, str] | None = None  # by the last listing
        self._listing = threading.Lock()
        # Threads fill both without a lock: two that open the same segment get equal values.
        self._opened: dict[tuple[RemoteLog, str], _Opened] = {}
        self._unwrapped: dict[str, Unwrapped] = {}
        survey(self._root)

    def logs(self, topics: Collection[str] = ()) -> list[RemoteLog]:
        """The logs with at least one complete segment, in the order of their folders.

        A prefix that does not end in a slash is part of the names of folders, so one manifest of
        each topic is read for the name of the topic.  Folders of other topics are not listed.
        """
        if self._folders is None and topics:
            return [each for each in self._listed(topics) if each.topic in topics]
        return [each for each in self._logs() if not topics or each.topic in topics]

    def _logs(self) -> dict[RemoteLog, str]:
        """Folders of the logs; the tier is listed once."""
        with self._listing:
            if self._folders is None:
                self._folders = self._listed()
            return self._folders

    def _listed(self, topics: Collection[str] = ()) -> dict[RemoteLog, str]:
        """Folders of the logs, and of other logs perhaps if only some topics are asked for."""
        ends = tuple(f"{each}-" for each in topics)
        first: dict[str, SegmentKey] = {}
        partitions: list[SegmentKey] = []
        for folder in sorted(list_entries(self._root)):
            if folder.type is not FileType.DIRECTORY or len(folder.name) < 24:
                continue
            if ends and not folder.name[:-_ID_CHARACTERS].endswith(ends):
                continue
            for partition in sorted(list_entries(f"{self._root}/{folder.name}")):
                keys = self._manifests(f"{folder.name}/{partition.name}")
                if keys:
                    first.setdefault(folder.name, keys[0])
                    partitions.append(keys[0])

        def topic_of(folder: str) -> str:
            # A read of the topic reports a manifest that cannot be used.  Reads of other topics
            # need not fail with it.
            key = first[folder]
            try:
                facts = self._read(folder, key).manifest.facts
            except RemoteSegmentError as error:
                logger.warning("%s; its topic is assumed to be %s", error, key.topic)
                return key.topic
            return key.topic if facts is None else facts.log.topic

        found = side_by_side(topic_of, list(first))
        names = dict(zip(first, found, strict=True))
        folders: dict[RemoteLog, str] = {}
        for key in partitions:
            folder_name = f"{key.topic}-{key.topic_id}"
            log = RemoteLog(names[folder_name], key.topic_id, key.partition)
            folders[log] = folder_name
        return folders

    def _manifests(self, folder: str) -> list[SegmentKey]:
        try:
            names = list_names(f"{self._root}/{folder}")
        except (FileNotFoundError, NotADirectoryError):
            return []
        keys = (parse_key(f"{folder}/{name}") for name in sorted(names))
        return [key for key in keys if key is not None and key.suffix == MANIFEST_SUFFIX]

    def segments(self, log: RemoteLog) -> list[RemoteSegment]:
        """The complete segments of a log, sorted by their start: one request for each manifest."""
        folder = self._folder(log)

        def read(key: SegmentKey) -> _Opened | None:
            try:
                return self._read(folder, key)
            except (RemoteSegmentError, OSError):
                name = f"{key.main}{MANIFEST_SUFFIX}".rpartition("/")[2]
                if name in list_names(f"{self._root}/{folder}/{key.partition}"):
                    raise
                return None  # it was deleted since it was listed

        keys = self._manifests(f"{folder}/{log.partition}")
        found = side_by_side(read, keys)
        segments = []
        for key, opened in zip(keys, found, strict=True):
            if opened is not None:
                self._opened[log, key.segment_id] = opened
                n_bytes = opened.manifest.chunks.file_bytes
                facts = opened.manifest.facts
                segment = facts or RemoteSegment(log, key.segment_id, key.base_offset)
                segments.append(segment._replace(log=log, n_bytes=n_bytes))
        return segments

    def folder(self, log: RemoteLog) -> str:
        return f"{self._root}/{self._folder(log)}/{log.partition}"

    def objects(self, log: RemoteLog) -> list[RemoteObject]:
        """See `Layout`; objects under a key that only the broker's metadata has are not listed."""
        folder = f"{self._folder(log)}/{log.partition}"
        try:
            names = sorted(list_names(f"{self._root}/{folder}"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        keys = ((name, parse_key(f"{folder}/{name}")) for name in names)
        return [
            RemoteObject(f"{self._root}/{folder}/{name}", key.segment_id if key else "")
            for name, key in keys
        ]

    def _folder(self, log: RemoteLog) -> str:
        usual = f"{log.topic}-{log.topic_id}"
        if self._folders is None and self._manifests(f"{usual}/{log.partition}"):
            return usual
        return self._logs().get(log, usual)

    def _read(self, folder: str, key: SegmentKey) -> _Opened:
        main = f"{self._root}/{folder}/{key.partition}/{key.main.rpartition('/')[2]}"
        path = main + MANIFEST_SUFFIX
        manifest = parse_manifest(path, _read_manifest(path))
        facts = manifest.facts
        if facts is None:
            return _Opened(main, path, manifest)
        log, at, segment_id = facts.log, facts.start_offset, facts.segment_id
        known = log.topic_id, log.partition, at, segment_id
        # A prefix without a slash is part of the folder's name.
        is_of_topic = key.topic.endswith(log.topic)
        if not is_of_topic or known != key[1:5]:
            reason = (
                f"it is the manifest of segment {segment_id} of {log.topic}-{log.partition} "
                f"(topic id {log.topic_id}) at offset {at}"
            )
            raise RemoteSegmentError(path, reason, _RESTORE)
        return _Opened(main, path, manifest)

    def open(self, segment: RemoteSegment, part: RemoteFileKind) -> ReadableFile | None:
        """A part of a segment, open; None if the segment does not have it.

        Its bytes are those that the broker had.  Of a compressed or encrypted segment, a read
        fetches the chunks that hold its bytes, and no others.
        """
        opened = self._of(segment)
        manifest = opened.manifest
        if part is RemoteFileKind.LOG:
            return self._open_log(opened)
        name = _INDEXES[part]
        if name not in manifest.indexes:
            return None
        position, size = manifest.indexes[name]
        key = self._key(opened) if size else None
        if key is None:
            file = _open(f"{opened.main}.indexes")
            if (n_bytes := file.status().size) < position + size:
                file.close()
                reason = f"the object has {n_bytes} bytes, and its manifest describes more"
                raise RemoteSegmentError(file.path, reason, _ONE_UPLOAD)
            return SectionFile(file, position, size)
        if size < ENCRYPTION_BYTES:
            reason = f"the manifest describes an encrypted index of {size} bytes"
            raise RemoteSegmentError(opened.manifest_path, reason, _RESTORE)
        plain = size - ENCRYPTION_BYTES
        chunks = ChunkIndex(max(plain, 1), plain, (size, size), position)
        file = _open(f"{opened.main}.indexes")
        return ChunkedFile(file, chunks, is_compressed=False, key=key, is_whole=False)

    def _open_log(self, opened: _Opened) -> ReadableFile:
        manifest, path = opened.manifest, f"{opened.main}.log"
        key = self._key(opened)
        file = _open(path)
        if not manifest.is_plain:
            compressed = manifest.is_compressed
            return ChunkedFile(file, manifest.chunks, is_compressed=compressed, key=key)
        size, expected = file.status().size, manifest.chunks.file_bytes
        if size != expected:
            file.close()
            reason = f"the object has {size} bytes, and its manifest describes {expected}"
            raise RemoteSegmentError(path, reason, _ONE_UPLOAD)
        return file

    def _of(self, segment: RemoteSegment) -> _Opened:
        log = segment.log
        opened = self._opened.get((log, segment.segment_id))
        if opened is None:
            key = SegmentKey(
                log.topic,
                log.topic_id,
                log.partition,
                segment.start_offset,
                segment.segment_id,
                MANIFEST_SUFFIX,
            )
            opened = self._read(self._folder(log), key)
            self._opened[log, segment.segment_id] = opened
        if segment.custom_metadata:
            custom = parse_custom_metadata(segment.custom_metadata)
            if custom is not None:
                main = _overridden(self._root, opened.main, custom)
                if main is None:
                    path = f"{opened.main}.log"
                    reason = "the metadata of the segment names an object outside the tier"
                    raise RemoteSegmentError(path, reason, _FOREIGN)
                return opened._replace(main=main)
        return opened

    def _key(self, opened: _Opened) -> Unwrapped | None:
        encryption = opened.manifest.encryption
        if encryption is None:
            return None
        path = opened.manifest_path
        if path not in self._unwrapped:
            self._unwrapped[path] = self._keys.unwrap(path, encryption)
        return self._unwrapped[path]


def _overridden(root: str, main: str, custom: CustomMetadata) -> str | None:
    """The path of the log and the indexes without suffix, as the segment's metadata names it.

    None if it leads out of the tier: a producer of the metadata topic chooses it.

    The prefix in the metadata begins at the bucket.  Below a local path the bucket has no border:
    a root that ends in the prefix is the prefix itself, and any other root is the bucket.
    """
    key = custom.key or main[len(root) + 1 :]
    names = f"{custom.prefix or ''}{key}".split("/")
    # Each part is to be a name, on a disk as in a bucket.
    if any(name in {"", ".", ".."} or "\0" in name for name in names):
        return None
    if custom.prefix is None or f"{root}/".endswith(f"/{custom.prefix}"):
        return f"{root}/{key}"
    if "://" not in root:
        return f"{root}/{custom.prefix}{key}"
    scheme, _, rest = root.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{custom.prefix}{key}"


def _open(path: str) -> ReadableFile:
    try:
        return open_file(path)
    except FileNotFoundError:
        reason = "the object is missing, and the manifest of its segment exists"
        raise RemoteSegmentError(path, reason, _RESTORE) from None


def _read_manifest(path: str) -> bytes:
    try:
        with open_file(path) as file:
            found = file.status()
            if found.type is not FileType.FILE or found.size > MOST_MANIFEST_BYTES:
                reason = f"the manifest has {found.size} bytes ({stat.filemode(found.mode)})"
                raise RemoteSegmentError(path, reason, _FOREIGN)
            return file.read(0, found.size)
    except FileNotFoundError:
        reason = "the segment has no manifest: its upload did not end, or it was deleted"
        raise RemoteSegmentError(path, reason, _RESTORE) from None
