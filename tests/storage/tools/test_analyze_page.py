"""The page of ``segmentlog analyze`` in a real browser, wide and as wide as a phone."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka_here import ArtifactsError
from kafka_here.artifacts import browser
from matplotlib.image import imread

import segmentlog
from segmentlog.tools.analyze_page import page

pytestmark = [pytest.mark.thorough, pytest.mark.linux]

Shot = Callable[..., Any]

#: Backgrounds and bars, as the page's style has them.
BACK, BAR = (
    {"light": (246, 247, 249), "dark": (16, 20, 26)},
    {"light": (47, 111, 208), "dark": (110, 163, 242)},
)
MARGIN = 8  #: pixels at both sides that are left free


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of topics with long names, and with a name that has no place to break it."""
    path = tmp_path_factory.mktemp("page")
    n = 3_000
    rows = pa.table(
        {
            "key": pa.array([b"k%d" % (i % 50) for i in range(n)], pa.binary()),
            "value": pa.array([b'{"n": %d}' % i for i in range(n)], pa.binary()),
        }
    )
    for topic in ("orders", "a" * 120, "a.topic.with-many_parts." * 4 + "x"):
        with segmentlog.open_writer(path / "logs", topic, num_partitions=3) as writer:
            writer.append(rows)
    found = segmentlog.analyze(path / "logs", show_keys=True)
    (path / "report.html").write_text(page(found, ["/srv/kafka/" + "d" * 150]))
    return path / "report.html"


@pytest.fixture(scope="module")
def shot(report: Path) -> Shot:
    """Takes a picture of the page, and returns its pixels."""
    try:
        program = browser()
    except ArtifactsError as error:
        pytest.skip(f"no browser: {error}")

    def draw(name: str, url: str, *flags: str, timeout: int) -> str:
        """What the browser says while it takes the picture ``name.png``."""
        picture, profile = report.with_name(f"{name}.png"), report.with_name(f"profile-{name}")
        return subprocess.run(
            [
                str(program),
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                *flags,
                "--hide-scrollbars",
                "--enable-logging=stderr",
                f"--user-data-dir={profile}",
                f"--screenshot={picture}",
                url,
            ],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=True,
        ).stderr

    try:
        # In some virtual machines, the renderer of a headless Chromium never answers.
        draw("empty", "data:text/html,<p>", timeout=30)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{program} draws no empty page within 30 seconds")

    def take(width: int, scheme: str) -> Any:
        dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
        name = f"{width}-{scheme}"
        said = draw(name, report.as_uri(), f"--window-size={width},3000", *dark, timeout=120)
        assert "Refused to" not in said  # the policy forbids nothing that the page has
        assert "CONSOLE" not in said
        return np.rint(imread(report.with_name(f"{name}.png"))[:, :, :3] * 255).astype(int)

    return take


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (390, "dark"),
        (1280, "light"),
        pytest.param(390, "light", marks=pytest.mark.slow),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_wider_than_the_page(shot: Shot, width: int, scheme: str) -> None:
    """The margins are free from top to bottom, and between them is a page with bars."""
    pixels = shot(width, scheme)
    left, right = pixels[:, :MARGIN], pixels[:, -MARGIN:]

    assert width == pixels.shape[1]
    assert (left == BACK[scheme]).all()
    assert (right == BACK[scheme]).all()
    assert 1000 < (pixels == BAR[scheme]).all(axis=2).sum()
    assert (pixels[2500:] != BACK[scheme]).any()
