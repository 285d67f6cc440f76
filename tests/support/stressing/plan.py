"""The plan of writers: the run's seed and the number determine each operation."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from numbered_jobs import Job

import segmentlog
from segmentlog.format.topic_config import TopicConfig

__all__ = ["NUMBERS_PER_SLOT", "OPS", "READS", "SHORT_READS", "TOPICS", "Op", "op_of"]

#: Topics that exist from the beginning, with their partitions.
TOPICS = {"few": 3, "more": 2, "tiny": 2}
NUMBERS_PER_SLOT = 10**6  #: of the operations of one writer
_NEW_PARTITIONS = 3

#: Kinds of operations, and how often they come.
OPS = {
    "append": 22, "append large": 10, "append tiny": 16, "append to both": 8, "create": 16,
    "overwrite": 10, "abort": 4, "fail": 14, "recover": 4, "forget watermarks": 4,
}  # fmt: skip

#: Short kinds of reads; other kinds begin, are put aside, and continue later.
SHORT_READS = ("scan", "slices", "time")
READS = (*SHORT_READS, "held", "held time", "later")

_SMALL = {"segment_bytes": 20_000, "batch_size": 2000}
_TINY = {"segment_bytes": 260, "batch_size": 0}  # a batch for each row, a few to a segment
_LARGE = {"segment_bytes": 20_000, "batch_size": 1 << 17}  # moved: more than 8 KiB to a batch


@dataclass(frozen=True)
class Op:
    """One operation of a writer.

    Attributes
    ----------
    kind : one of `OPS`.
    job : what is written, with the operation's number.
    sizes : of segments and batches.
    flush : whether it is synced.
    is_numbered : whether it is a numbered write (``txn``), tried again after a kill.
    pause_seconds : before each append, and before the decision.
    fails_at : number of the append that fails, if one fails.
    """

    kind: str
    job: Job
    sizes: Mapping[str, int]
    flush: bool
    is_numbered: bool
    pause_seconds: float
    fails_at: int

    @property
    def is_write(self) -> bool:
        """Whether it reaches a commit."""
        return self.kind not in {"abort", "recover", "forget watermarks"}

    @property
    def topic(self) -> str | None:
        """The topic of all rows, if there is only one."""
        return next(iter(self.job.topics)) if len(self.job.topics) == 1 else None

    @property
    def config(self) -> segmentlog.ProducerConfig:
        """Settings of the writer."""
        topic_config = TopicConfig(
            segment_bytes=self.sizes["segment_bytes"], index_interval_bytes=100
        )
        return segmentlog.ProducerConfig(
            topic_config, batch_size=self.sizes["batch_size"], flush=self.flush,
            use_timestamps=True,
        )  # fmt: skip


def op_of(seed: int, number: int, n_new_topics: int) -> Op:
    """Operation `number`; one writer makes at most `n_new_topics` topics."""
    rng = random.Random(f"{seed} {number}")
    (kind,) = rng.choices(list(OPS), list(OPS.values()))
    slot, at = divmod(number, NUMBERS_PER_SLOT)
    sizes, n_bytes, n_rows = _SMALL, rng.randint(20, 100), rng.randint(3, 40)
    topics = {name: TOPICS[name] for name in [rng.choice(["few", "more"])]}
    if kind == "append large":
        sizes, n_bytes, n_rows = _LARGE, 1100, rng.randint(9, 40)
    elif kind == "append tiny":
        sizes, n_bytes, n_rows, topics = _TINY, 20, rng.randint(20, 60), {"tiny": TOPICS["tiny"]}
    elif kind == "append to both":
        topics = {"few": TOPICS["few"], "more": TOPICS["more"]}
    elif kind == "create":
        topics["new%dx%d" % (slot, at // 6 % n_new_topics)] = _NEW_PARTITIONS  # noqa: UP031
    elif kind == "overwrite":
        topics = {name: TOPICS[name] for name in [rng.choice(list(TOPICS))]}
    elif kind == "fail":
        n_rows = rng.randint(60, 200)
        topics = dict(TOPICS)
        sizes = rng.choice([_SMALL, _TINY, {"segment_bytes": 2000, "batch_size": 100}])
        n_bytes = 20 if sizes == _TINY else n_bytes
    job = Job(number, topics, n_rows, n_bytes, 1_700_000_000_000 + rng.randint(0, 100_000))
    return Op(
        kind, job, sizes,
        flush=rng.random() > 0.1,
        is_numbered=rng.random() < 0.3,
        pause_seconds=rng.choice([0, 0, 0.002, 0.02]),
        fails_at=rng.randint(1, 12),
    )  # fmt: skip
