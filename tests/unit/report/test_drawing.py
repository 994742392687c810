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
from phaze.report.drawing import draw_all


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


def test_figures_are_drawn_the_same_by_any_number_of_processes() -> None:
    alone = draw_all(charts(5))
    assert list(alone) == [f"bars-{k}" for k in range(1, 6)]
    assert len({figure.svg for figure in alone.values()}) == 5
    assert {figure.width_px for figure in alone.values()} == {192}
    assert draw_all(charts(5), 3) == alone


def test_nothing_to_draw_needs_no_process() -> None:
    assert draw_all([], 4) == {}


@pytest.mark.parametrize("processes", [1, 2])
def test_what_goes_wrong_in_a_figure_is_told_as_it_is(processes: int) -> None:
    broken = Chart("broken", "Broken", "", partial(nothing, "model x: has no stages"))
    with pytest.raises(PhazeError, match=r"^model x: has no stages$"):
        draw_all([*charts(2), broken], processes)


KILLED = """
from functools import partial
from pathlib import Path
from phaze.report.document import Chart
from phaze.report.drawing import draw_all
from tests.unit.report.test_drawing import endless

draw_all([Chart(name, name, "", partial(endless, Path({folder!r}))) for name in "ab"], 2)
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
