"""Figures are drawn the same by one process and by several, which end with the one that started them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from phaze.base.errors import PhazeError
from phaze.report.document import Chart
from phaze.report.style import Drawn, ask_for_figure, draw
from phaze.report.workers import ALONE, Workers, employ
from phaze.tables.store import Recalled


def bars(*heights: float) -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().bar(range(len(heights)), heights)
    return figure


def side_by_side(heights: list[float], others: list[float]) -> Figure:
    return bars(*heights, *others)


def nothing(why: str) -> Figure:
    raise PhazeError(why)


def endless(folder: Path) -> Figure:
    (folder / str(os.getpid())).touch()
    time.sleep(600)
    return Figure()


def charts(count: int) -> list[Chart]:
    return [Chart(f"bars-{k}", f"Bars {k}", "", partial(bars, k, 2 * k, 3)) for k in range(1, count + 1)]


def draw_all(charts: list[Chart], workers: Workers) -> list[Drawn]:
    asked = [workers.ask(partial(draw, chart)) for chart in charts]
    return [wait() for wait in asked]


def test_figures_are_drawn_the_same_by_any_number_of_processes() -> None:
    alone = draw_all(charts(5), ALONE)
    assert len({figure.svg for figure in alone}) == 5
    assert {figure.width_px for figure in alone} == {192}
    with employ(3) as workers:
        assert draw_all(charts(5), workers) == alone


def test_one_process_works_alone() -> None:
    with employ(1) as workers:
        assert workers is ALONE


def known(data: list[int]) -> tuple[int, int]:
    """Return what tells whether two questions see the same object."""
    return id(data), sum(data)


def test_what_is_shared_is_read_once_by_a_worker() -> None:
    data = [1, 2, 3]
    with employ(2) as workers:
        workers.share(data)
        answers = [workers.ask(partial(known, data)) for _ in range(6)]
        data.append(4)  # what was shared stays as it was
        found = {answer() for answer in answers}
    assert {total for _, total in found} == {6}
    assert len(found) <= 2


def counted(folder: Path, height: int) -> Figure:
    (folder / f"{len(list(folder.iterdir()))}.drawn").touch()
    return bars(height)


def test_a_kept_figure_is_drawn_again_only_when_its_data_or_the_code_changes(tmp_path: Path) -> None:
    drawings = tmp_path / "drawings"
    drawings.mkdir()

    def figure(height: int, code: str) -> Drawn:
        chart = Chart("bars", "Bars", "", partial(counted, drawings, height))
        with Recalled(tmp_path / "kept.json", code) as kept:
            return ask_for_figure(chart, ALONE, kept)()

    first = figure(1, "a")
    assert figure(1, "a") == first
    assert len(list(drawings.iterdir())) == 1
    assert figure(2, "a") != first
    assert figure(2, "b") == figure(2, "b")
    assert len(list(drawings.iterdir())) == 3


def test_equal_data_make_one_figure_whether_or_not_they_share_objects(tmp_path: Path) -> None:
    """What workers made is equal to what one process makes, but no longer the same object twice."""
    data, kept = [1.0, 2.0], Recalled(tmp_path / "kept.json", "code")
    for again in (data, list(data)):
        chart = Chart("bars", "Bars", "", partial(side_by_side, data, again))
        with kept:
            ask_for_figure(chart, ALONE, kept)()
    assert len(json.loads((tmp_path / "kept.json").read_text())["answers"]) == 1


def test_workers_are_not_asked_for_a_figure_that_is_kept() -> None:
    chart, kept = charts(1)[0], Recalled()
    drawn = ask_for_figure(chart, ALONE, kept)()
    with employ(2) as workers:
        assert ask_for_figure(chart, workers, kept)() == drawn
        assert workers.pool is not None
        assert not workers.pool._processes, "a process starts with the first question"


@pytest.mark.parametrize("processes", [1, 2])
def test_what_goes_wrong_in_a_figure_is_told_as_it_is(processes: int) -> None:
    broken = Chart("broken", "Broken", "", partial(nothing, "model x: has no stages"))
    with (
        employ(processes) as workers,
        pytest.raises(PhazeError, match=r"^model x: has no stages$"),
    ):
        draw_all([*charts(2), broken], workers)


KILLED = """
from functools import partial
from pathlib import Path
from phaze.report.document import Chart
from phaze.report.style import draw
from phaze.report.workers import employ
from tests.unit.report.test_drawing import endless

charts = [Chart(name, name, "", partial(endless, Path({folder!r}))) for name in "ab"]
with employ(2) as workers:
    for answer in [workers.ask(partial(draw, chart)) for chart in charts]:
        answer()
"""


def test_a_killed_report_leaves_no_process_behind(tmp_path: Path, project_root: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(project_root)}
    script = KILLED.format(folder=str(tmp_path))
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment, cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert all(is_running(worker) for worker in workers)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(is_running(worker) for worker in workers))


def wait_until(happens: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < ends
        time.sleep(0.05)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
