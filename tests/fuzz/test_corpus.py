"""The compiled kernels read the inputs that reached new lines of the plain reference."""

import pytest
from fuzzing.harness import Decoder, check
from fuzzing.seeds import CORPUS, read_corpus

MOST_BYTES = 200_000


@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("with_slack", [False, True])
def test_kernels_agree_with_the_reference(*, with_slack: bool, with_headers: bool) -> None:
    """The kernels and the reference agree on every input.

    Each input ends before an unreadable page.
    """
    decoder = Decoder()
    inputs = read_corpus()
    for data in inputs:
        decoded = decoder.decode(data, with_slack=with_slack, with_headers=with_headers)
        check(data, decoded, with_headers=with_headers)

    assert len(inputs) > 100


def test_the_corpus_stays_small() -> None:
    """The corpus is a file of the repository."""
    assert CORPUS.stat().st_size < MOST_BYTES
