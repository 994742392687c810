"""The report is one self-contained page, reproducible byte by byte, with tables next to it."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest

from phaze.pages.document import Chart, Gallery, Heading, Items, Prose, Section, Sheet
from phaze.pages.page import MOST_OPEN, Report
from phaze.report.build import build_report, compose
from phaze.report.findings import RESULT_TABLES, Findings
from phaze.report.inputs import Inputs
from phaze.report.record import count_proofs, proofs
from phaze.tables import Fronts, Proofs, Sensitivities, Times, Trials


class Elements(HTMLParser):
    """Parser that collects the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def values(self, attribute: str) -> list[str]:
        return [str(attrs[attribute]) for _, attrs in self.found if attribute in attrs]


@pytest.fixture(scope="module")
def elements(report: Report) -> Elements:
    parser = Elements()
    parser.feed(report.page)
    return parser


def test_the_page_asks_for_nothing_and_runs_only_its_own_script(report: Report, elements: Elements) -> None:
    tags = [tag for tag, _ in elements.found]
    assert not {*tags} & {"iframe", "img", "object", "embed"}
    scripts = re.findall(r"<script>(.*?)</script>", report.page, re.S)
    assert len(scripts) == 2, "of the page, and of its charts"
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    permitted = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"script-src {permitted};" in report.page
    without = re.sub(r"<script>.*?</script>", "", report.page, flags=re.S)
    assert not re.search(r"\bon[a-z]+=", without)
    assert not re.search(r"https?://|@import|url\((?!#)", without)
    assert all(value.startswith(("#", "data:")) for value in elements.values("href"))


def test_ids_are_unique_and_every_link_inside_the_page_leads_somewhere(elements: Elements) -> None:
    ids = elements.values("id")
    assert len(ids) == len(set(ids))
    inside = {value[1:] for value in elements.values("href") if value.startswith("#")}
    assert inside <= set(ids)


def test_every_part_of_the_report_is_there(report: Report) -> None:
    expected = [
        "throughput", "memory", "ranking", "certificate",
        "front", "time", "chips",
        "sensitivity", "closeups", "simulated", "strategies", "walk", "scenarios",
        "proofs", "models", "misfits", "checks", "method",
    ]  # fmt: skip
    assert [section.anchor for section in report.sections] == expected
    assert all(section.about for section in report.sections)


def test_every_figure_has_a_title_a_name_and_is_drawn(report: Report, elements: Elements) -> None:
    charts = list(report.charts)
    assert len({chart.name for chart in charts}) == len(charts) > 20
    assert any(isinstance(block, Gallery) for section in report.sections for block in section.blocks)
    assert all(chart.title for chart in charts)
    several = [chart.title for chart in charts if not report.drawn[chart.name].only]
    assert len(several) > 20
    labels = [str(a["aria-label"]) for tag, a in elements.found if tag == "svg" or a.get("class") == "plot"]
    assert {*labels} == {*several}


def test_few_figures_are_open_and_every_other_part_is_folded(report: Report) -> None:
    names = [chart.name for _, chart in report.leading]
    assert len({*names}) == len(names) == MOST_OPEN
    head, *parts = report.page.split('<details class="section"')
    assert [f'id="figure-{name}"' in head for name in names] == [True] * MOST_OPEN
    assert head.count('<figure class="chart"') == MOST_OPEN
    assert len(parts) == len(report.sections) + 2, "the answer in full, and the tables to download"
    assert all(cell in parts[0] for cell in report.answer.sheet.rows[0])
    for section, part in zip(report.sections, parts[1:], strict=False):
        assert f'id="{section.anchor}"' in part
        assert all(f'href="#figure-{chart.name}"' in part for chart in section.charts if chart.name in names)


def test_few_words_precede_the_first_figure(report: Report) -> None:
    head = report.page.split('<main id="main">')[1].split("<figure")[0]
    assert len(re.sub(r"<[^>]*>", " ", head).split()) <= 60
    assert len(re.split(r"(?<=[.?!]) (?=[A-Z])", report.answer.sentence)) == 2


@pytest.mark.slow
def test_open_figures_are_those_that_the_answer_names_else_the_first_of_each_section(report: Report) -> None:
    first = [next(section.charts).name for section in report.sections if any(section.charts)]
    none = replace(report, answer=replace(report.answer, figures=()))
    assert [chart.name for _, chart in none.leading] == first[:MOST_OPEN]
    named = replace(report, answer=replace(report.answer, figures=(first[2], "absent", first[0])))
    assert [chart.name for _, chart in named.leading] == [first[2], first[0]]


def test_a_folded_section_is_summed_up_in_one_sentence(report: Report) -> None:
    section = Section("a", "A", "One chip of 2.5 mm². No other. (Both.)", ())
    assert (section.summary, section.details) == ("One chip of 2.5 mm².", "No other. (Both.)")
    assert Section("a", "A", "One chip", ()).details == ""
    assert all(section.summary for section in report.sections)


def test_every_row_of_a_sheet_is_as_long_as_its_header(report: Report) -> None:
    blocks = [block for section in report.sections for block in section.blocks]
    sheets = [report.answer.sheet, *(block for block in blocks if isinstance(block, Sheet))]
    assert len(sheets) > 15
    for sheet in sheets:
        assert {len(row) for row in sheet.rows} <= {len(sheet.header)}, sheet.caption
        assert not sheet.source or sheet.source in report.tables


def test_models_are_shown_in_the_order_of_the_study(inputs: Inputs, findings: Findings) -> None:
    backwards = inputs.study.models[::-1]
    shown = findings.in_order(backwards)
    assert tuple(dict.fromkeys(shown.results["model"])) == backwards
    for _, ranked in shown.rankings.groupby("model", sort=False):
        assert ranked["rank"].is_monotonic_increasing


def test_numbers_stay_with_their_units(report: Report) -> None:
    assert re.search(r"\d\u00a0ms per batch", report.page)
    assert re.search(r"\{\d+,\u00a0\d+,\u00a0\d+\}", report.page)


def test_the_page_is_small(report: Report) -> None:
    assert len(report.page) < 1_600_000


def test_the_same_study_gives_the_same_bytes(inputs: Inputs, findings: Findings, report: Report) -> None:
    again = compose(inputs, findings)
    assert again.markdown == report.markdown
    few = (replace(one, sections=one.sections[:3]) for one in (report, again))
    assert len({one.page for one in few}) == 1


def test_names_cannot_break_out_of_the_page(report: Report) -> None:
    evil = replace(report.answer.sheet, rows=(("<script>alert(1)</script>", "a|b"),))
    wrong = replace(report, answer=replace(report.answer, sheet=evil), sections=())
    assert wrong.page.count("<script>") == 1, "the page's own"
    assert "&lt;script&gt;alert(1)" in wrong.page
    assert "a\\|b" in wrong.markdown


def test_names_are_no_html_in_markdown(report: Report) -> None:
    """Markdown renderers treat tags in text as HTML; comparisons must stay legible."""
    evil = "<img src=x onerror=alert(1)> </td> <!-- 1 < 2 <b>"
    chart = Chart("c", evil, evil, lambda: None)  # type: ignore[arg-type, return-value]
    sheet = replace(report.answer.sheet, header=(evil,), rows=((evil,),), caption=evil)
    blocks = (Prose(evil), Heading(evil), Items((evil,)), sheet, chart, Gallery((chart,)))
    answer = replace(report.answer, sentence=evil, facts=((evil, evil),), sheet=sheet)
    section = Section("s", evil, evil, blocks)
    text = replace(report, title=evil, subtitle=evil, answer=answer, sections=(section,)).markdown
    assert text.count("&lt;img src=x onerror=alert(1)> &lt;/td> &lt;!-- 1 < 2 &lt;b>") == 20
    assert "<img" not in text


def test_markdown_holds_the_same_sections_and_tables(report: Report) -> None:
    assert re.findall(r"^## (.*)$", report.markdown, re.M) == [s.title for s in report.sections]
    assert report.markdown.count("| ---") >= 15
    assert "\n\n\n\n" not in report.markdown


def test_a_table_in_the_page_is_the_whole_table(report: Report, findings: Findings) -> None:
    assert report.download("walks").startswith("data:text/csv;base64,")
    assert set(report.tables) == set(findings.tables()) == {*RESULT_TABLES, "times"}


def bare(inputs: Inputs) -> Inputs:
    """Return the study with one model and without all optional parts."""
    one = inputs.study.model_copy(update={"models": ("bert-large",)})
    cluster = replace(
        inputs.cluster,
        placements=inputs.cluster.placements[inputs.cluster.placements["model"] == "bert-large"],
        common=None,
    )
    return replace(
        inputs, study=one, clusters={"paper": cluster}, families={}, fronts=Fronts.empty(),
        trials=Trials.empty(),
        solves=inputs.solves[inputs.solves["model"] == "bert-large"],
        sensitivities=Sensitivities.empty(), times=Times.empty(),
        certificates=inputs.certificates[inputs.certificates["model"].isin(["bert-large", "(common)"])],
        audits=inputs.audits[inputs.audits["model"] == "bert-large"],
    )  # fmt: skip


def test_a_study_of_one_model_without_extras_has_a_shorter_report(inputs: Inputs) -> None:
    report = build_report(bare(inputs))
    sections = re.findall(r"^## (.*)$", report.markdown, re.M)
    assert "Scenarios" not in sections
    assert report.failures == []
    assert "1 workload, scenario paper" in report.markdown
    assert "For bert-large: {2, 512, 256, 256, 256} cores" in report.markdown
    assert "one for all" not in report.markdown


def test_a_failed_check_is_a_failure_of_the_report(inputs: Inputs, findings: Findings) -> None:
    slow = findings.checks["check"] == "utilisation is at most one"
    failed = findings.checks.assign(passed=~slow, example="megatron-bert")
    report = compose(inputs, replace(findings, checks=failed))
    assert report.failures == ["utilisation is at most one: megatron-bert"]
    assert "FAILED" in report.markdown


def test_proofs_count_layers_by_what_is_known(inputs: Inputs) -> None:
    found = count_proofs(inputs.solves).set_index("model").loc["bert-large"]
    assert found["solves"] == found["optimal"] + found["feasible"] + found["timed_out"]
    assert found["feasible"] == 4
    assert found["largest_gap"] == pytest.approx(0.02)
    assert found["branching"] == found["solves"]


def test_only_what_is_not_proven_has_a_gap_to_show(
    inputs: Inputs, findings: Findings, report: Report
) -> None:
    open_ = inputs.solves[inputs.solves["status"] != "optimal"]
    assert f"Schedules with a gap: {len(open_)}" in report.markdown
    proven = replace(bare(inputs), solves=inputs.solves.assign(status="optimal", gap=1e-16))
    assert "no solve has a gap" in str(list(proofs(proven, findings)))


def test_no_solves_are_no_proofs(inputs: Inputs) -> None:
    pd.testing.assert_frame_equal(count_proofs(inputs.solves.iloc[:0]), Proofs.empty())
