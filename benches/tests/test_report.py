"""The report: what it takes from the benchmarks' lines, and what it makes of that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from report import page, steps
from report.lines import Printed
from report.results import Results
from report.targets import AT_MOST, LINES, Line

REPOSITORY = Path(__file__).resolve().parents[2]


def printed(*lines: str) -> Printed:
    found = Printed()
    for line in lines:
        found.feed(line + "\n")
    return found


def results(tmp_path: Path, **ratios: float) -> Results:
    """With ratios of these names, where a dot is written as two underscores."""
    lines = [f"ratio {name.replace('__', '.')} {value}" for name, value in ratios.items()]
    found = Results(tmp_path / "results.json")
    one = printed("# (medians of 9)", *lines)
    found.add("one", {"ratios": one.ratios, "points": [], "notes": one.notes, "failure": None})
    return found


def test_figures_of_two_machines_do_not_stand_together(tmp_path: Path) -> None:
    here = results(tmp_path, engine__pull__int8=0.7)
    here.begin(everything=False)
    assert here.steps()
    elsewhere = json.loads(here.path.read_text())
    elsewhere["machine"] = {"cpu": "another"}
    here.path.write_text(json.dumps(elsewhere))
    with pytest.raises(SystemExit, match="another machine: run all steps"):
        Results(here.path).begin(everything=False)
    anew = Results(here.path)
    anew.begin(everything=True)
    assert not anew.steps()


def test_lines_are_taken_and_others_passed_over() -> None:
    found = printed(
        "   Compiling hotrow",
        "# pull: 3.5 Mrows/s (medians of 41)",
        "ratio engine.pull.int8 0.712",
        "# median of 7 repetitions",
        "ratio python.pull.over_rust 0.9",
        'point {"sweep": "dim", "layer": "engine", "what": "pull", "x": 16, "rows_per_s": 2e6}',
        "ratios are not this",
    )
    assert found.ratios == [
        {"name": "engine.pull.int8", "value": 0.712, "layer": "engine", "repetitions": 41},
        {"name": "python.pull.over_rust", "value": 0.9, "layer": "Python", "repetitions": 7},
    ]
    assert [point["x"] for point in found.points] == [16]
    assert len(found.notes) == 2


@pytest.mark.parametrize(
    "line", ["ratio cache.pull 1", "ratio engine.pull", "ratio engine.pull fast", 'point {"sweep": "dim"}', "point {"]
)
def test_lines_that_say_nothing_are_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        printed(line)


def test_targets_are_met_from_the_right_side() -> None:
    assert Line("", target=0.7).met(0.7) and not Line("", target=0.7).met(0.699)
    assert Line("", AT_MOST, 2.0).met(2.0) and not Line("", AT_MOST, 2.0).met(2.001)
    assert Line("").met(0.1) is None


def test_the_table_of_targets_is_honest(tmp_path: Path) -> None:
    text = page.targets_part(results(tmp_path, engine__pull__int8=0.71, service__latency__p99_over_p50=5.5))
    rows = {row.split("`")[1]: row for row in text.splitlines() if "`" in row}
    asked = [name for name, line in LINES.items() if line.target is not None]
    assert list(rows) == asked
    assert text.startswith(f"1 of {len(asked)} met.")
    assert rows["engine.pull.int8"].endswith("| 9 | at least 0.7 | met |")
    assert rows["service.latency.p99_over_p50"].endswith("| at most 5 | **missed** |")
    assert rows["service.pull.f32_over_redis"].endswith("| at least 8 | **not measured** |")


def test_a_ratio_stands_in_one_table(tmp_path: Path) -> None:
    text = page.ratios_part(results(tmp_path, engine__pull__int8=0.71, engine__pull__new=2.0))
    assert "engine.pull.new" in text and "`engine.pull.int8`" not in text


def test_a_step_replaces_its_own_results_only(tmp_path: Path) -> None:
    found = results(tmp_path, engine__pull__int8=0.71)
    found.add("two", {"ratios": printed("ratio service.pull.f32 0.8").ratios, "points": []})
    found.add("two", {"ratios": printed("ratio service.push.f32 0.9").ratios, "points": []})
    assert list(Results(found.path).ratios()) == ["engine.pull.int8", "service.push.f32"]


def test_only_what_is_between_markers_changes() -> None:
    text = "before\n<!-- generated: a -->\nold\n<!-- end -->\nlearnt\n<!-- generated: b -->\n<!-- end -->\nafter\n"
    once = page.fill(text, {"a": "new", "b": "too"})
    assert once == text.replace("old\n", "\nnew\n\n").replace("b -->\n", "b -->\n\ntoo\n\n")
    assert page.fill(once, {"a": "new", "b": "too"}) == once
    with pytest.raises(SystemExit, match="there must be one for each"):
        page.fill(text, {"a": "new"})


def test_the_page_has_a_place_for_every_part(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "BENCHMARKS.md").read_text()
    empty = Results(tmp_path / "none.json")
    names = ["machine", "targets", "systems", "sweeps", "ratios"]
    assert page.fill(text, dict.fromkeys(names, "")).count("<!-- end -->") == len(names)
    assert "0 of" in page.targets_part(empty)


def test_a_step_that_fails_keeps_what_it_printed(capfd: pytest.CaptureFixture[str]) -> None:
    code = "print('ratio engine.pull.int8 0.5'); raise SystemExit(3)"
    found = steps.run(steps.Step("broken", ("python", "-c", code), None), quick=False)
    assert found["failure"] == "ended with 3"
    assert [ratio["value"] for ratio in found["ratios"]] == [0.5]
    assert "ratio engine.pull.int8 0.5" in capfd.readouterr().out
    json.dumps(found)
