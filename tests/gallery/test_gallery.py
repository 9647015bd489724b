"""The gallery page: shapes from TOML, radii that never contradict the labels, and what a browser makes of the page."""

from __future__ import annotations

import html.parser
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from ccfs.certificates.occupancy import BoxUnion, EventVerdict
from ccfs.certificates.witnesses import l_shape, two_band
from ccfs.cli.main import app
from ccfs.gallery import page, study, witness
from ccfs.gallery.shape import EXAMPLE, Shape, load_shape, paper_shapes, read_shape

pytestmark = pytest.mark.slow
ROOM = """
sigma = 0.3
center = [0.4, 0.5]
[[box]]
low = [0, 0]
high = [0.5, 1]
label = 0
[[box]]
low = [0.5, 0]
high = [1, 1]
label = 1
"""


@pytest.fixture
def coarse(monkeypatch):
    """Maps of eight centers a side: radii and changes do not depend on them."""
    monkeypatch.setitem(study.GRID, 2, 8)
    monkeypatch.setitem(study.GRID, 1, 9)


@pytest.fixture(scope="module")
def example_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("gallery") / "rooms.html"
    page.write_page(path, [read_shape(EXAMPLE)])
    return path


def named(found, name):
    return next(radius for radius in found.radii if radius.name == name)


def test_read_shape_example_is_what_it_says():
    shape = read_shape(EXAMPLE)
    assert shape.title == "Two rooms and a door"
    assert shape.labels == (0, 1, 0)
    assert shape.boxes.sigma == 0.3
    np.testing.assert_array_equal(shape.center, [0.35, 0.6])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sigma = ", "not valid TOML"),
        ("", "lacks box, center, sigma"),
        (ROOM + "\ncolour = 1", "box 1 has keys that mean nothing here: colour"),
        (ROOM.replace("sigma = 0.3", "sigma = 0.3\nnoise = 1"), "the file has keys that mean nothing here: noise"),
        (ROOM.replace("sigma = 0.3", "sigma = '0.3'"), "`sigma` must be a number"),
        (ROOM.replace("sigma = 0.3", "sigma = true"), "`sigma` must be a number"),
        (ROOM.replace("sigma = 0.3", "sigma = 0"), "`sigma` must be positive"),
        (ROOM.replace("sigma = 0.3", "sigma = nan"), "`sigma` must be a number, got nan"),
        (ROOM.replace("center = [0.4, 0.5]", "center = [0.4, inf]"), "`center` must be finite"),
        (ROOM.replace("center = [0.4, 0.5]", "center = [0.4]"), "`center` must have shape"),
        (ROOM.replace("center = [0.4, 0.5]", "center = 0.4"), "`center` must be a list of numbers"),
        (ROOM.replace("low = [0.5, 0]", "low = [0.4, 0]"), "boxes 0 and 1 overlap"),
        (ROOM.replace("low = [0.5, 0]", "low = [0.5, nan]"), "`lows` must not contain nan"),
        (ROOM.replace("low = [0.5, 0]", "low = [0.5]"), "must have one length"),
        (ROOM.replace("label = 1", "label = true"), "`label` must be an integer"),
        (ROOM.replace("label = 1", "label = -1"), "`labels` must be at least 0"),
        (ROOM.replace("label = 1", "label = 1.5"), "`label` must be an integer"),
        ("sigma = 1\ncenter = [0, 0, 0]\n[[box]]\nlow = [0, 0, 0]\nhigh = [1, 1, 1]", "one or two dimensions, got 3"),
        ("sigma = 1\ncenter = [0]\nbox = 3", r"must be written as \[\[box\]\]"),
    ],
)
def test_read_shape_refuses(text, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read_shape(text)


def test_load_shape_names_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read the shape .*none\.toml"):
        load_shape(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("sigma = 1")
    with pytest.raises(ValueError, match=r"the shape .*bad\.toml cannot be drawn: the file lacks"):
        load_shape(tmp_path / "bad.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="cannot read the shape"):
        load_shape(tmp_path / "binary.toml")


@pytest.mark.usefixtures("coarse")
def test_study_of_the_papers_shapes_matches_the_proved_witnesses():
    tails, corner, bands = (study.study(shape) for shape in paper_shapes())
    assert named(tails, "joint mass").value == pytest.approx(0.1, abs=1e-8)
    assert tails.change_distance == pytest.approx(0.1, abs=1e-11)
    assert named(corner, "substituted").value == pytest.approx(float(l_shape().substituted_radius.middle), abs=1e-8)
    assert corner.probability == pytest.approx(float(l_shape().event_nominal.middle), abs=1e-12)
    assert named(bands, "joint mass").value == pytest.approx(float(two_band().joint_mass_radius.middle), abs=1e-8)
    assert bands.change_distance == pytest.approx(0.1, abs=1e-11)
    # The second coordinate lies in [-1, 1]: ratio 1 everywhere, and at least the proved forward-KL radius.
    assert float(two_band().covariance_radius.middle) < named(bands, "conditional Rényi").value < 0.1
    assert [radius.name for radius in tails.radii] == ["joint mass", "substituted"]
    assert "conditional odds" in [radius.name for radius in corner.radii]
    assert bands.local_ratio == pytest.approx(1.0, abs=1e-12)
    for found in (tails, corner, bands):
        assert [radius.name for radius in found.broken] == ["substituted"]
        assert not named(found, "substituted").is_sound
    assert dict(bands.events)["+z₂"] is EventVerdict.FAILS
    assert dict(bands.events)["+z₁"] is EventVerdict.HOLDS


@pytest.mark.usefixtures("coarse")
def test_study_of_a_convex_set_calls_the_substituted_radius_sound():
    found = study.study(read_shape(ROOM))
    assert named(found, "substituted").is_sound
    assert found.broken == ()
    assert not found.maps.fails.any()
    assert "every radius below is a certificate" in page.page([found])


@pytest.mark.usefixtures("coarse")
def test_study_with_one_label_never_changes():
    found = study.study(read_shape(ROOM.replace("label = 1", "label = 0")))
    assert found.change is None
    assert named(found, "joint mass").value == math.inf
    text = page.page([found])
    assert "there is only one label" in text
    assert "∞" in text


@pytest.mark.usefixtures("coarse")
def test_study_of_a_tie_has_no_radius():
    found = study.study(read_shape(ROOM.replace("center = [0.4, 0.5]", "center = [0.5, 0.5]")))
    assert all(radius.value == 0.0 for radius in found.radii)


@pytest.mark.usefixtures("coarse")
def test_study_refuses_a_center_out_of_every_reach():
    with pytest.raises(ValueError, match="Move it closer"):
        study.study(read_shape(ROOM.replace("center = [0.4, 0.5]", "center = [90.0, 0.5]")))


@pytest.mark.usefixtures("coarse")
def test_study_sound_radii_hold_on_random_shapes():
    """`study` itself raises when a label change lies inside a sound radius; here it is looked for again, at random."""
    rng = np.random.default_rng(21)
    for _ in range(4):
        count = int(rng.integers(2, 5))
        left = np.arange(count) + rng.uniform(0.0, 0.3, size=count)
        low = np.stack([left, rng.uniform(-1.0, 0.5, size=count)], axis=1)
        high = low + rng.uniform([0.2, 0.2], [0.7, 1.5], size=(count, 2))
        shape = Shape(
            title="",
            words="",
            boxes=BoxUnion(low, high, float(rng.uniform(0.2, 1.0))),
            labels=tuple(rng.permutation(count).tolist()),
            center=rng.uniform([0.0, -1.0], [count, 1.5]),
        )
        found = study.study(shape)
        best = max(radius.value for radius in found.radii if radius.is_sound)
        angle = rng.uniform(0.0, 2.0 * np.pi, size=400)
        inside = best * np.sqrt(rng.uniform(size=400)) * 0.999999
        points = shape.center + inside[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        masses = shape.boxes.log_label_masses(points, shape.labels)
        assert np.all(np.argmax(masses, axis=-1) == found.label)


@pytest.mark.usefixtures("coarse")
def test_study_finds_the_label_at_the_change():
    found = study.study(read_shape(EXAMPLE))
    unit = (found.change - found.shape.center) / found.change_distance
    masses = found.shape.boxes.label_masses(
        found.shape.center + (found.change_distance + np.asarray([[-1e-9], [1e-9]])) * unit, found.shape.labels
    )
    assert np.argmax(masses, axis=-1).tolist() == [0, 1]


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"href", "src", "xlink:href"}]


def test_page_is_self_contained_and_without_scripts(example_page):
    seen = _Links()
    text = example_page.read_text(encoding="utf-8")
    seen.feed(text)
    assert "script" not in seen.tags
    assert "link" not in seen.tags
    assert seen.links
    kinds = ("#", "data:image/png;base64,", "data:image/svg+xml;base64,", "data:text/csv;base64,")
    assert all(link.startswith(kinds) for link in seen.links)
    assert re.findall(r"url\(|@import|https?:", text) == []


def test_page_marks_what_is_unsound_and_says_where_the_label_changes(example_page):
    text = example_page.read_text(encoding="utf-8")
    assert text.count("UNSOUND") == 2  # in the table and at its circle
    assert "inside the substituted radius, which promises too much" in text
    assert text.count("<figure>") == 4
    for word in ("Occupancy", "local ratio", "Where events break", "Radii at the center"):
        assert word in text


@pytest.mark.usefixtures("coarse")
def test_page_escapes_what_the_user_wrote():
    shape = read_shape(ROOM.replace("sigma", 'title = "<script>alert(1)</script>"\nwords = "a & b"\nsigma', 1))
    text = page.page([study.study(shape)])
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "a &amp; b" in text


@pytest.mark.usefixtures("coarse")
def test_page_is_the_same_twice():
    shape = read_shape(EXAMPLE)
    assert page.page([study.study(shape)]) == page.page([study.study(shape)])


@pytest.mark.usefixtures("coarse")
def test_page_with_witnesses_shows_their_proofs():
    text = page.page([], witnesses=witness.pages())
    assert text.count('<span class="good">proved</span>') == sum(len(page.checks) for page in witness.pages())
    assert "NOT PROVED" not in text
    assert "[0.190855207763, 0.190855207764]" in text


@pytest.mark.usefixtures("coarse")
def test_page_rounds_radii_down():
    found = study.study(read_shape(ROOM))
    below = replace(found.radii[0], value=float(np.nextafter(0.123457, 0.0)))
    text = page.page([replace(found, radii=(below, replace(below, value=math.inf)))])
    assert '<td class="n">0.123456</td>' in text
    assert '<td class="n">∞</td>' in text


def test_witness_command_writes_the_page_of_a_shape(tmp_path):
    drawn = tmp_path / "shape.toml"
    left, right = "low = [-inf]\nhigh = [-1.0]\nlabel = 0", "low = [1.0]\nhigh = [inf]\nlabel = 1"
    drawn.write_text(f"sigma = 1.0\ncenter = [-0.1]\n[[box]]\n{left}\n[[box]]\n{right}\n")
    done = CliRunner().invoke(app, ["witness", "--html", str(tmp_path / "deep" / "page.html"), "--shape", str(drawn)])
    assert done.exit_code == 0, done.output
    assert "0.099999" in (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")


def test_witness_command_refuses_with_exit_code_two(tmp_path):
    page = str(tmp_path / "page.html")
    (tmp_path / "bad.toml").write_text("sigma = 1")
    for words, message in (
        (["--shape", "x.toml"], "needs `--html"),
        (["--html", page, "--json"], "must not be given together"),
        (["--html", page, "--shape", str(tmp_path / "bad.toml")], "cannot be drawn"),
        (["--html", page, "--shape", str(tmp_path / "none.toml")], "cannot read the shape"),
    ):
        done = CliRunner().invoke(app, ["witness", *words])
        assert done.exit_code == 2, words
        assert message in done.output
    assert not (tmp_path / "page.html").exists()


def test_browser_shows_four_drawings_in_light_and_dark(browser, example_page, tmp_path):
    shown = browser.dom(example_page)
    assert shown.count('role="img"') == 4
    light = imread(browser.screenshot(example_page, tmp_path / "light.png", width=1100, height=1400))
    dark = imread(browser.screenshot(example_page, tmp_path / "dark.png", width=1100, height=1400, dark=True))
    assert light[..., :3].mean() > 0.75
    assert dark[..., :3].mean() < 0.35
    # The occupancy map was decoded: its yellow is on the page in both.
    for picture in (light, dark):
        red, green, blue = (picture[..., channel] for channel in range(3))
        assert int(((red > 0.9) & (green > 0.85) & (blue < 0.25)).sum()) > 3000


def test_browser_fits_the_page_on_a_phone(browser, example_page):
    assert browser.size(example_page, width=390)[0] == 390


def test_browser_finds_no_fault_of_access(browser, example_page):
    assert browser.faults(example_page, width=500) == []


def test_page_names_every_circle_and_gives_its_files(example_page):
    text = example_page.read_text(encoding="utf-8")
    names = re.findall(r'<text class="halo (sound|unsound)-name"[^>]*>([^<]*)<', text)
    assert any(kind == "unsound" and "substituted: UNSOUND" in words for kind, words in names)
    assert any(kind == "sound" and "joint mass" in words for kind, words in names)
    assert text.count('.svg" aria-label') == text.count('.csv" aria-label') == text.count('role="img"')
    assert "\\x0a" not in text  # the example of a file has lines
