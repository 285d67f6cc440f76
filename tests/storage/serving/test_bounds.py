"""What connections share: nobody gets more than there is, and nobody is forgotten."""

import asyncio
import random

from segmentlog.serving.bounds import Room

_ALL = 100_000


def test_room_is_given_in_turn_and_comes_back_from_who_is_cancelled() -> None:
    """Also from one that is cancelled in the moment in which it gets its room."""
    asyncio.run(_take_at_random())


async def _take_at_random() -> None:
    room, rng = Room(_ALL), random.Random(72)
    held = most = 0

    async def hold(n_bytes: int, n_turns: int) -> None:
        nonlocal held, most
        taken = await room.take(n_bytes)
        held += taken
        most = max(most, held)
        try:
            for _ in range(n_turns):
                await asyncio.sleep(0)
        finally:
            held -= taken
            room.give(taken)

    tasks = [
        asyncio.create_task(hold(rng.choice([10, 20_000, 60_000, 300_000]), rng.randrange(4)))
        for _ in range(300)
    ]
    while not all(each.done() for each in tasks):
        rng.choice(tasks).cancel()
        await asyncio.sleep(0)

    assert held == 0
    assert 60_000 <= most <= _ALL
    assert _ALL == await asyncio.wait_for(room.take(_ALL), 1)
