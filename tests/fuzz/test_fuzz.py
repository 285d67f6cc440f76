"""Any mutation of a log gives a typed error or correct records, in bounded time and memory."""

import json
import os
import random
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import pytest
from fuzzing.harness import OUTCOMES, Decoder, Report, check, fuzz, join
from fuzzing.mutate import mutant
from fuzzing.seeds import load_seeds
from hypothesis import given, settings
from hypothesis import strategies as st

SLOW_RUN = Path(__file__).parent / "slow_run.json"

N_MUTANTS, N_MORE_MUTANTS = 12_500, 100_000
N_SLOW_MUTANTS = int(os.environ.get("FUZZ_MUTANTS", "5_000_000"))
CHUNK = 12_500
COMPARE_EVERY, COMPARE_EVERY_SLOW = 1, 4

#: For one mutant, on a machine with other work.
MOST_SECONDS = 2.0
#: Growth of a process over all its mutants: buffers of the kernels, and memory of Arrow's pool.
MOST_GROWTH_BYTES = 64 << 20

SEEDS = load_seeds()
DECODER = Decoder()


def run(first: int, n_mutants: int, compare_every: int) -> Report:
    """Fuzz on two cores. If a core crashes, the output has the numbers of its mutants."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        starts = range(first, first + n_mutants, CHUNK)
        chunks = {start: pool.submit(fuzz, start, CHUNK, compare_every) for start in starts}
        reports = []
        for start, chunk in chunks.items():
            print(f"mutants {start} to {start + CHUNK}", flush=True)
            reports.append(chunk.result())
    return join(reports)


def judge(report: Report) -> None:
    """Check the facts that must hold for every run."""
    print(report)

    assert set(report.outcomes) <= OUTCOMES
    assert 2 * report.n_repaired >= report.n_mutants
    assert report.slowest_seconds < MOST_SECONDS
    assert report.most_growth_bytes < MOST_GROWTH_BYTES


def test_mutants_give_typed_errors_or_right_records() -> None:
    """Mutants lie before an unreadable page. The reference agrees, and each outcome occurs."""
    report = run(0, N_MUTANTS, COMPARE_EVERY)

    judge(report)
    assert OUTCOMES == set(report.outcomes)
    assert report.n_mutants == N_MUTANTS


@pytest.mark.slow
def test_new_mutants_give_typed_errors_or_right_records() -> None:
    """Each run draws other mutants, and prints their numbers."""
    judge(run(random.SystemRandom().randrange(10**9), N_MORE_MUTANTS, COMPARE_EVERY))


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_millions_of_mutants() -> None:
    """The full run writes its figures into `slow_run.json`."""
    begun = time.monotonic()
    report = run(0, N_SLOW_MUTANTS, COMPARE_EVERY_SLOW)
    seconds = time.monotonic() - begun
    judge(report)

    if report.n_mutants >= 5_000_000:
        figures = report._asdict() | {"outcomes": dict(report.outcomes.most_common())}
        run_of = {"date": date.today().isoformat(), "n_mutants": report.n_mutants}
        SLOW_RUN.write_text(json.dumps(run_of | {"seconds": round(seconds)} | figures, indent=1))


@given(st.randoms(use_true_random=False), st.booleans(), st.booleans())
@settings(max_examples=400, deadline=None)
def test_hypothesis_finds_no_difference(
    rng: random.Random, with_slack: bool, with_headers: bool
) -> None:
    """Hypothesis draws the mutations, and shrinks a mutation that fails."""
    data, _, _ = mutant(SEEDS, rng)

    check(
        data,
        DECODER.decode(data, with_slack=with_slack, with_headers=with_headers),
        with_headers=with_headers,
    )


def test_a_mutant_is_the_same_whenever_it_is_made() -> None:
    """A mutant depends only on its number, also in another process."""
    assert mutant(SEEDS, random.Random(7)) == mutant(load_seeds(), random.Random(7))
