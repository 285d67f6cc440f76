"""Real processes that are killed at their requests to a server."""

import pytest
from killed_writers import play_kills
from moto_here import Moto


@pytest.mark.slow
def test_two_hundred_kills(moto: Moto) -> None:
    place = moto.url("kills")
    found = play_kills(place, 200)
    assert found.is_right, found
    assert found.n_kills >= 200
