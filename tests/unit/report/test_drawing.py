"""Figures are drawn the same by one process and by several, which end with the one that started them."""

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

from phaze.errors import PhazeError
from phaze.report.document import Chart
from phaze.report.drawing import Drawn, draw
from phaze.report.workers import ALONE, Workers, employ


def bars(*heights: float) -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.subplots().bar(range(len(heights)), heights)
    return figure


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
from phaze.report.drawing import draw
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
