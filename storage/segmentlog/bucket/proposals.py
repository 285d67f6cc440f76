"""Proposals: writes that whoever creates the next commit takes along.

A proposal is an object of the inbox.  A small one has all it says in its key, so that one list
shows the proposals of all writers.  Its key begins with the newest commit that its writer knew.
It may be named in the next `MOST_COMMITS` commits, and in no later one.

A proposal is only an offer.  Whoever combines takes it if it can follow as it is, and passes over
it in silence otherwise: it is its writer that finds out why it cannot, and says so.
"""

import base64
import json
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from segmentlog.bucket.commits import Commit
from segmentlog.bucket.extents import PlacedExtent
from segmentlog.bucket.log_state import LogState
from segmentlog.bucket.objects import DATA
from segmentlog.errors import SegmentLogError
from segmentlog.model import LARGEST_LONG, TopicPartition
from segmentlog.txn.state import check_types

INBOX = "segmentlog/inbox/"

#: An object that a writer replaces once it has lost numbers.  Lists of commits show it, so a
#: writer that would win each time sees that there are others.
HOT = "segmentlog/commits/hot"

#: Commits that may name a proposal: the next ones after that which its writer knew.
MOST_COMMITS = 16

#: A job that takes longer may not commit: the log remembers for 30 days which jobs have ended, and
#: a sweep removes the objects of those that it has ended.
LONGEST_JOB_MS = 14 * 24 * 3600 * 1000

#: A list goes back so many commits; one of as many goes back `MOST_COMMITS`.
_OFTEN = 4

#: Numbers of commits that share a folder of the inbox: a list takes one folder, or two.
_FOLDER = 256

_KEY = re.compile(r"segmentlog/inbox/[0-9]{20}/([0-9]{20})-([0-9a-f]{32})-([0-9A-Za-z_-]*)")

#: A key has up to 1,024 bytes, with the path of the place.
_MOST_IN_KEY = 600
MOST_BYTES = 256 << 10  #: of the text of a proposal

#: What proposals begin with: their fields need not stand in each key.
_COMMON = (
    b'"version":["batch":["transaction_index":[0"digest":[0,"offset_index":[0,"time_index":[0,'
    b'"extents":{"topic":[0],"partition":[0],"object":[0],"shift":[0],"start":[0],"size":['
    b'"base_offset":[0],"end_offset":[1],"n_records":[1],"max_timestamp":[-1]}},"topics":["'
    b'"objects":["data/0-.batches"],{"token":"","job":"'
)


class Key(NamedTuple):
    """What the key of a proposal says."""

    made_at: int
    token: str
    text: str  # empty if the object has it


class Proposal(NamedTuple):
    """A write that may follow a state.

    `made_at`: the newest commit that its writer knew, and `seen` its token.  `begun_ms`: when its
    job began.  `topics`: id and number of partitions of each topic.  `commit`: the write as it
    would follow commit `made_at`.
    """

    made_at: int
    seen: str
    begun_ms: int
    topics: Mapping[str, tuple[str, int]]
    commit: Commit

    @classmethod
    def of(cls, commit: Commit, state: LogState, begun_ms: int) -> "Proposal | None":
        """A commit that follows a state, for others; None if it is more than an append."""
        rest = replace(commit, extents=(), version=None, batch=None)
        is_append = rest == Commit(commit.number, commit.token, commit.job, commit.time_ms)
        if not is_append or not state.log_id:
            return None
        known = {name: state.topics[name] for name in _topics_of(commit)}
        topics = {name: (each.topic_id, each.n_partitions) for name, each in known.items()}
        found = cls(state.number, state.token, begun_ms, topics, commit)
        return found if len(found._text()) <= MOST_BYTES else None

    def _text(self) -> bytes:
        about = [self.seen, self.begun_ms, [[name, *each] for name, each in self.topics.items()]]
        return json.dumps([*about, self.commit.as_part()], separators=(",", ":")).encode()

    def encode(self) -> tuple[str, bytes]:
        """The key of its object, and the object's bytes."""
        packer = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=_COMMON)
        packed = packer.compress(self._text()) + packer.flush()
        text = base64.urlsafe_b64encode(packed).rstrip(b"=").decode()
        begin = f"{_folder(self.made_at)}{self.made_at:020d}-{self.commit.token}-"
        return (begin + text, b"") if len(text) <= _MOST_IN_KEY else (begin, packed)

    @classmethod
    def decode(cls, key: Key, data: bytes) -> "Proposal | None":
        """The proposal with a key, whose object has some bytes; None if they are none."""
        try:
            packed = base64.urlsafe_b64decode(key.text + "=" * (-len(key.text) % 4)) or data
            unpacker = zlib.decompressobj(-15, zdict=_COMMON)
            seen, begun_ms, topics, part = json.loads(unpacker.decompress(packed, MOST_BYTES))
            check_types((seen, begun_ms), (str, int))
            named = dict[str, tuple[str, int]]()
            for name, topic_id, n_partitions in topics:
                check_types((name, topic_id, n_partitions), (str, str, int))
                named[name] = topic_id, n_partitions
            commit = Commit.of_part(part, key.made_at + 1, 0)
        except (
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            AttributeError,
            RecursionError,
            zlib.error,
            SegmentLogError,
        ):
            return None
        is_whole = commit.token == key.token and bool(commit.job)
        is_whole &= named.keys() == _topics_of(commit)
        return cls(key.made_at, seen, begun_ms, named, commit) if is_whole else None

    def after(self, state: LogState) -> Commit | None:
        """The part of the commit that has led to a state; None if it cannot follow now.

        It is placed after what the log holds.  It is the same write: in the same topics, of a job
        that has not ended, and as a numbered write or a batch that has not been done.
        """
        commit, ends, placed = self.commit, dict[TopicPartition, int](), list[PlacedExtent]()
        if commit.job in state.ended or time.time() * 1000 - self.begun_ms > LONGEST_JOB_MS:
            return None
        for name, is_as in self.topics.items():
            found = state.topics.get(name)
            if found is None or found.lacks or (found.topic_id, found.n_partitions) != is_as:
                return None
        if commit.version is not None:
            app_id, number, names = commit.version
            if any(state.versions.get((app_id, each), (-1, 0))[0] >= number for each in names):
                return None
        if commit.batch is not None:
            query, batch = commit.batch
            if query in state.streams and batch.number <= state.streams[query][0].number:
                return None
        for each in commit.extents:
            at = TopicPartition(each.topic, each.partition)
            log = state.logs.get(at)
            if log is None or (log.epochs and log.epochs[-1][0] > 0):
                return None
            base = ends.get(at, log.end)
            ends[at] = end = base + each.end_offset - each.base_offset
            if end > LARGEST_LONG or not each.object.startswith(f"{DATA}{commit.job}/"):
                return None
            placed.append(each._replace(base_offset=base, end_offset=end, shift=base))
        return replace(commit, number=state.number, extents=placed)


def _topics_of(commit: Commit) -> set[str]:
    return {
        *(each.topic for each in commit.extents),
        *(commit.version[2] if commit.version else ()),
    }


def _folder(number: int) -> str:
    return f"{INBOX}{number // _FOLDER:020d}/"


def folders(number: int) -> list[tuple[str, str]]:
    """The folders of proposals for the commit after a number, each with a key before them.

    With many writers, most proposals are of the last commits, and all others are named by then.
    So only every fourth list begins with the first one that may be open.
    """
    first = max(number - (MOST_COMMITS if number % _OFTEN == 0 else _OFTEN) + 1, 0)
    return [(each, f"{each}{first:020d}") for each in {_folder(first), _folder(number)}]


def parsed_key(key: str) -> Key | None:
    """What the key of a proposal says, or None if it is the key of something else."""
    found = _KEY.fullmatch(key)
    return Key(int(found[1]), found[2], found[3]) if found else None
