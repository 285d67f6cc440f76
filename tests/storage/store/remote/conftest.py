"""What the tests of one module must not leave to those of another."""

import pytest

from segmentlog.store.remote import location


@pytest.fixture(autouse=True)
def forgets_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the credentials of a test: messages of later tests would leave out their words."""
    monkeypatch.setattr(location, "_secrets", {})
