"""The report says what the certificates say, rounded against us, escapes what it is given, and works in a browser."""

from __future__ import annotations

import base64
import csv
import io
import re
import shutil
from fractions import Fraction
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from toy_protocol import contents, protocol
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import lower_text
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.trajectory import certify_event
from ccfs.cli.main import app
from ccfs.report.charts import ticks
from ccfs.report.counts import sources
from ccfs.report.drawings import Disc, Panel, PathGroup, drawing_for, totals
from ccfs.report.figures import drawing_figure, interval, observed
from ccfs.report.page import render, write_report
from ccfs.results.certificate import AttackedCount, covered
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store

pytestmark = pytest.mark.slow
HOSTILE = '<script>document.title="owned"</script>&"'
TURNED = "\\u202edetsurt"
MANY = {
    "text": ('name = "toy"', f"name = \"toy\"\ndescription = \"\"\"{HOSTILE} {TURNED}\"\"\""),
    "controllers": (
        "[[schedules]]\nname = \"one\"",
        '[[controllers]]\nname = "second"\nmake = "steering"\n\n[[schedules]]\nname = "one"',
    ),
    "events": (
        '[[attacks]]\nname = "push"',
        '[[events]]\nname = "acts"\nevent = "no-abstention"\n\n[[events]]\nname = "cheap"\nevent = "cost-at-most"\n'
        'arguments = { limit = 0.5 }\n\n[[attacks]]\nname = "noise"\nrule = "random"\nenergy = 0.5\n\n'
        '[[attacks]]\nname = "push"',
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    store = run(protocol(folder, trials=8, **MANY), folder / "run", serial_engine(), where="p")
    certify(store)
    return store


@pytest.fixture
def store(finished, tmp_path):
    shutil.copytree(finished.root, tmp_path / "copy")
    return Store(tmp_path / "copy")


class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "data", "poster")]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize(("bound", "successes"), [(bound, s) for bound in Bound for s in (0, 1, 7, 20)])
def test_interval_holds_the_rate_and_mirrors(bound, successes):
    low, high = interval(successes, 20, bound, delta=0.05)
    assert 0.0 <= low <= successes / 20 <= high <= 1.0
    mirrored = interval(20 - successes, 20, bound, delta=0.05)
    assert (mirrored[0], mirrored[1]) == pytest.approx((1.0 - high, 1.0 - low), abs=1e-15)


def test_interval_is_clopper_and_pearsons():
    """Oracle: exact tails at the ends are 0.025 (from binomial sums in fractions)."""
    from math import comb

    low, high = interval(3, 12, Bound.CLOPPER_PEARSON, delta=0.05)
    p, q = Fraction(low), Fraction(high)
    above = sum(comb(12, k) * p**k * (1 - p) ** (12 - k) for k in range(3, 13))
    below = sum(comb(12, k) * q**k * (1 - q) ** (12 - k) for k in range(4))
    assert above <= Fraction(0.025)
    assert below <= Fraction(0.025)
    assert float(above) == pytest.approx(0.025, abs=1e-12)
    assert float(below) == pytest.approx(0.025, abs=1e-12)


def test_observed_certifies_an_energy_limit_by_its_square_root():
    steps = [ProposalSchedule(count=1, sigma=0.2), ProposalSchedule(count=1, sigma=0.4)]
    proof = certify_event(90, 100, delta=0.05, family=1, target=0.5, schedule=steps, bound="clopper-pearson")
    by_energy = AttackedCount(
        attack="a", stages=("action",), budget=None, energy_limit=4.0, energy=1.0, successes=3, trials=100
    )
    by_budget = AttackedCount(
        attack="b", stages=("action",), budget=0.4, energy_limit=4.0, energy=1.0, successes=3, trials=100
    )
    absent = AttackedCount(
        attack="c", stages=("action",), budget=0.4, energy_limit=4.0, energy=0.0, successes=0, trials=0
    )
    nominal, energy, budget = observed(proof, [by_energy, by_budget, absent])
    assert (nominal.budget, nominal.certified) == (0.0, proof.p_lower)
    assert energy.budget == pytest.approx(0.4)
    assert energy.certified <= budget.certified == pytest.approx(energy.certified, abs=1e-12)
    assert not nominal.is_contradiction
    worse = AttackedCount(
        attack="d", stages=("action",), budget=0.01, energy_limit=0.0025, energy=0.0, successes=3, trials=100
    )
    assert observed(proof, [worse])[1].is_contradiction


def test_ticks_cover_tiny_and_huge_ranges():
    for low, high in ((0.0, 3e-9), (-2.0, 7e6), (0.7, 1.0)):
        found = ticks(low, high)
        assert 3 <= len(found) <= 8
        assert low <= found[0] < found[-1] <= high


def test_report_states_every_claim_and_its_limits(finished):
    page = _Page(render(finished))
    documents = list(finished.root.glob("certificates/*/*/*.json"))
    assert len(documents) == 12
    for path in documents:
        document = certify_document(path)
        assert " ".join(document.sentence.split()) in page.text
        assert lower_text(document.trajectory.p_lower) in page.text
    for words in ("What is not claimed", "the fallback center may run without", "average over the 8 reset seeds"):
        assert words in page.text
    assert finished.protocol().hash in page.text
    assert "ccfs audit . --replay all" in page.text


def certify_document(path):
    from ccfs.results.certificate import RunCertificate

    return RunCertificate.from_bytes(path.read_bytes(), where=str(path))


def test_report_needs_nothing_else_and_escapes_everything(finished):
    text = render(finished)
    page = _Page(text)
    # Places on the page itself and files inside of it, and nothing else.
    kinds = {"#", "data:image/svg+xml;base64,", "data:text/csv;base64,"}
    assert {re.match(r"#|data:[^,]*,", link)[0] for link in page.links} == kinds
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert re.findall(r"https?://|url\(|@import", text) == []
    assert HOSTILE in page.text
    assert TURNED in page.text  # written out, so that it turns no word around
    assert "\u202e" not in page.text
    assert "<script" not in text
    assert str(finished.root) not in text


def test_report_draws_a_figure_for_every_claim_source_and_arm(finished):
    text = render(finished)
    # 3 overviews (an event each), 12 claims, 4 arms with 3 source panels, 4 drawings; keys are drawn apart.
    assert len(re.findall(r'<svg viewBox[^>]*role="img"', text)) == 3 + 12 + 12 + 4
    assert text.count('<svg class="key"') == 12 * 3


def test_report_joins_the_manifest_and_survives_audit(store):
    first = write_report(store).read_bytes()
    assert audit(store, replay=3).faults == ()
    before = contents(store.root)
    assert write_report(store).read_bytes() == first
    assert contents(store.root) == before
    certify(store)
    assert contents(store.root) == before
    store.path("report.html").write_bytes(first + b" ")
    assert audit(store).faults == ("report.html: was changed after it was written.",)


def test_report_refuses_a_changed_or_uncertified_run(store):
    name = "certificates/steer/one/safe.json"
    content = store.read(name)
    store.path(name).write_bytes(content.replace(b"claim", b"clam", 1))
    with pytest.raises(RunError, match="was changed"):
        write_report(store)
    assert not store.exists("report.html")


def test_report_of_an_uncertified_run_says_what_to_do(tmp_path):
    bare = run(protocol(tmp_path, trials=4), tmp_path / "run", serial_engine(), where="p")
    done = CliRunner().invoke(app, ["report", str(bare.root)])
    assert done.exit_code == 2
    assert "ccfs certify" in done.output
    assert CliRunner().invoke(app, ["report", str(tmp_path / "absent")]).exit_code == 2


def test_report_command_takes_another_drawing(store):
    done = CliRunner().invoke(app, ["report", str(store.root), "--drawing", "ccfs.report.drawings:totals"])
    assert done.exit_code == 0
    assert "Total cost so far" in store.path("report.html").read_text(encoding="utf-8")
    refused = CliRunner().invoke(app, ["report", str(store.root), "--drawing", "ccfs.report.drawings:absent"])
    assert refused.exit_code == 2
    assert "`drawing`" in refused.output


def test_drawing_of_an_unknown_environment_is_the_totals(finished):
    protocol = finished.protocol()
    assert drawing_for(protocol).__name__ == "corridor"
    other = protocol.model_copy(update={"environment": protocol.environment.model_copy(update={"make": "a:b"})})
    assert drawing_for(other) is totals


def test_drawing_figure_keeps_units_equal_on_a_map():
    path = np.array([[0.0, 0.0], [4.0, 0.0], [np.nan, 1.0], [4.0, 1.0]])
    disc = Disc(name="hazard <1>", center=(2.0, 0.5), radius=0.5, kind="hazard")
    panel = Panel(caption="c", x_label="x", y_label="y", groups=(PathGroup(name="n", paths=(path,)),), discs=(disc,), is_map=True)  # fmt: skip  # noqa: E501
    text = str(drawing_figure(panel).svg())
    assert "hazard &lt;1&gt;" in text
    assert re.search(r'd="M[\d. ]+L[\d. ]+M[\d. ]+"', text), "a point that is not finite breaks the line"
    (x0, y0), (x1, _), (_, y2) = (map(float, pair) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", text.split('class="line')[1])[:3])  # fmt: skip  # noqa: E501
    assert (x1 - x0) / 4.0 == pytest.approx(y0 - y2, abs=0.3)


def test_sources_count_every_recorded_step(finished):
    protocol = finished.protocol()
    found = sources(finished, protocol, protocol.arms[1], protocol.attacks[0])
    assert found.names == ("proposal 1", "proposal 2", "proposal 3", "proposal 4", "fallback center", "abstained")
    assert (found.trials, sum(found.totals)) == (8, 48)
    assert found.shares.sum(axis=0) == pytest.approx(np.ones(6))


@pytest.fixture(scope="module")
def page(finished, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(finished), encoding="utf-8")
    return path


def test_report_in_a_browser_shows_every_figure_and_runs_nothing(browser, page):
    shown = browser.dom(page)
    assert "<title>toy · CCFS report</title>" in shown
    assert len(re.findall(r'<svg viewBox[^>]*role="img"', shown)) == 31
    assert shown.count('class="bar" role="img"') == 4 * 3


@pytest.mark.parametrize(("dark", "ground"), [(False, (255, 255, 255)), (True, (15, 19, 24))])
def test_report_in_a_browser_follows_the_colour_scheme(browser, page, tmp_path, dark, ground):
    with Image.open(browser.screenshot(page, tmp_path / "page.png", width=900, height=600, dark=dark)) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert tuple(pixels[0]) == ground
    assert len(np.unique(pixels, axis=0)) > 50


def test_report_in_a_browser_fits_a_phone(browser, page):
    width, height = browser.size(page, width=390)
    assert width == 390
    assert height > 2000


def test_report_says_what_is_covered_per_stage_and_which_premises_belong_to_which_arm(tmp_path):
    sensor = ("action = { count = 1, sigma = 0.2 }", 'sensor = { sigma = { position = 0.05 }, readers = "controller" }')
    attack = ("budget = 0.1\narguments = { direction = [1.0] }", "energy = 0.5\narguments = { direction = [1.0] }")
    both = (
        "action = { count = 4, sigma = 0.2, multiplier = 1.05 }",
        "action = { count = 4, sigma = 0.2, multiplier = 1.05 }\nsensor = { sigma = [0.05, 0.0] }",
    )
    rule = ('rule = "constant"', 'rule = "opposed"')
    direction = ("energy = 0.5\narguments = { direction = [1.0] }", "energy = 0.5")
    made = protocol(tmp_path, trials=20, a=sensor, b=attack, c=both, d=rule, e=direction)
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    documents = certify(store)
    page = render(store)
    assert 'id="covered"' in page
    for document in documents:
        for what, size in covered(document.trajectory):
            assert f'<td class="any">{what}</td><td class="n">{lower_text(size)}</td>' in page
    assert "errors\nof what they read are outside of the claim. <span" in page or "outside of the claim. <span" in page
    assert '<span class="share">(steer/one)</span>' in page
    assert "Nothing about any other disturbance: dynamics" in page
    assert "Nothing about errors of readings that have no noise here" in page


def test_report_of_an_action_stage_alone_claims_nothing_about_sensors(finished):
    page = render(finished)
    assert 'id="covered"' not in page
    assert "Nothing about any other disturbance: sensors, dynamics" in page


@pytest.mark.parametrize(("width", "dark"), [(500, False), (1400, True)])
def test_report_in_a_browser_has_no_fault_of_access(browser, page, width, dark):
    assert browser.faults(page, width=width, dark=dark) == []


def test_report_lists_every_section_in_its_contents(finished):
    text = render(finished)
    nav = text[text.index('<nav class="contents"') : text.index("</nav>")]
    sections = re.findall(r'<section id="([^"]+)"', text)
    assert re.findall(r'href="#([^"]+)"', nav) == sections
    assert text.count("<section") == len(sections) == len(set(sections)) >= 8


def test_report_shows_the_claims_as_one_table_first_with_the_claim_before_the_counts(finished):
    text = render(finished)
    first = r'<section id="claims">\s*<h2>[^<]*</h2>\s*<div class="scroll"[^>]*>\s*<table.*?</table>'
    table = re.search(first, text, re.S)[0]
    assert table.count('<th scope="row"') == 12
    heads = [" ".join(head.split()) for head in re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table, re.S)]
    assert heads[:5] == ["arm and event", "shift B up to", "keeps ≥", "no shift ≥", "counted"]
    first = re.search(r'<table class="arms">.*?</thead>', text, re.S)[0]
    assert first.index("B<sub>cert</sub>") < first.index(">trials<")


def test_report_marks_the_claim_among_several_bounds_only(finished, tmp_path):
    law = ("cohort = { first = 100, count = 20 }", "initial_law = 20")
    made = protocol(tmp_path, trials=20, a=law, b=('bound = "cohort"', 'bound = "clopper-pearson"'))
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    certify(store)
    assert "◆" not in render(store)
    page = render(finished)
    assert page.count("cohort ◆") == page.count(">hoeffding<") > 0
    assert "the one marked ◆" in page


def files_of(text, ending):
    """Return the files of a page by name, decoded."""
    kinds = {"svg": "image/svg\\+xml", "csv": "text/csv"}
    found = re.findall(rf'href="data:{kinds[ending]};base64,([^"]+)" download="([^"]+)"', text)
    assert len({name for _, name in found}) == len(found), "two figures have one name"
    return {name: base64.b64decode(content).decode() for content, name in found}


def test_report_gives_every_figure_as_svg_and_csv(finished):
    text = render(finished)
    drawn, numbers = files_of(text, "svg"), files_of(text, "csv")
    # As many as are drawn, and one more for the bars.
    assert len(drawn) == len(numbers) == 31 + 1
    for name, content in drawn.items():
        root = ElementTree.fromstring(content)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(" not in content
        assert "class=" not in content
        assert name.removesuffix(".svg") + ".csv" in numbers
    for content in numbers.values():
        rows = list(csv.reader(io.StringIO(content)))
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}


def test_csv_of_a_curve_has_the_certified_numbers_and_no_greater_ones(finished):
    numbers = files_of(render(finished), "csv")
    document = certify_document(finished.root / "certificates/steer/one/safe.json")
    name = next(name for name in numbers if name.startswith("steer-one-safe"))
    rows = [row for row in csv.reader(io.StringIO(numbers[name])) if row[0] == "certified lower bound"]
    assert len(rows) == 61
    for _, budget, lower, *_ in rows:
        assert float(lower) <= document.trajectory.lower_at(action=float(budget)) + 1e-15
    assert float(rows[0][2]) == document.trajectory.p_lower


def test_report_uses_words_of_goal_and_cost_only_for_events_that_know_them(tmp_path):
    neutral = ('name = "safe"\nevent = "no-cost-until-goal"', 'name = "acts"\nevent = "no-abstention"')
    store = run(protocol(tmp_path, trials=6, event=neutral), tmp_path / "run", serial_engine(), where="p")
    certify(store)
    section = re.search(r'<section id="outcomes">.*?</section>', render(store), re.S)[0]
    words = _Page(re.sub(r'href="[^"]*"', "", section)).text.lower()
    assert "reached the horizon" in section
    for word in ("goal", "cost", "timeout", "safe"):
        assert word not in words, word


def test_report_links_to_the_index_above_it_if_there_is_one(store, tmp_path):
    assert 'aria-label="Other pages"' not in render(store)
    done = CliRunner().invoke(app, ["runs", str(tmp_path), "--html"])
    assert done.exit_code == 0, done.output
    assert '<a href="../index.html">All runs</a>' in render(store)
    write_report(store)
    assert audit(store).faults == ()
