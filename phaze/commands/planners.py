"""Plans of planners from the literature for a planning request, and the files of Piper's planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phaze.commands.terminal import tell

if TYPE_CHECKING:
    from phaze.commands.plan_options import PlanOptions
    from phaze.formulas.piper.requests import PiperRequest
    from phaze.plan.question import PlanQuestion
    from phaze.spec.planner_rows import PlannerRow


def piper_request(question: PlanQuestion, options: PlanOptions) -> PiperRequest:
    """Input of Piper's planner, with measured layers if there are any; writes its layers if requested."""
    from phaze.base.files import write_text
    from phaze.formulas.piper.requests import PiperRequest
    from phaze.formulas.piper.timings import check_timings, read_timings, timings_text

    request = PiperRequest(question)
    if options.layers is not None:
        timings = read_timings(options.layers)
        check_timings(timings, request, options.layers)
        request = PiperRequest(question, timings)
    if options.write_layers is not None:
        write_text(options.write_layers, timings_text(request.timings))
    return request


def planner_rows(request: PiperRequest, options: PlanOptions) -> tuple[PlannerRow, ...]:
    """Plans of all planners; writes Piper's input and its table of times if requested."""
    from phaze.base.files import write_text
    from phaze.formulas.dynamic_programs import DynamicPrograms
    from phaze.formulas.piper.instance import write_instance
    from phaze.formulas.piper.table import table_text

    if options.table and options.out is not None:
        write_text(options.out, table_text(request))
    if options.write_input is not None:
        if request.best is None:
            tell(f"plan: {options.write_input} was not written: Piper has no plan")
        else:
            write_instance(options.write_input, request.best.layers, request.best.cluster)
    return tuple(DynamicPrograms(request.question, request).rows())
