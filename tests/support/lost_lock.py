"""A lock that its holder has lost without noticing, as after an expired lease."""

import contextlib
from collections.abc import Iterator

import pytest

from segmentlog.store import lock
from segmentlog.store.durable import holder_checks


@contextlib.contextmanager
def lock_is_lost() -> Iterator[None]:
    """Let this process take locks that it holds already, as another machine would."""
    kept = dict(holder_checks)
    holder_checks.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "_threads", {})
        patch.setattr(lock, "_try_lock", lambda *_: True)
        try:
            yield
        finally:
            holder_checks.clear()
            holder_checks.update(kept)
