"""Plans of small training questions, for tests that read or change them."""

from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.priced import MeasuredInterval
from phaze.spec.models import load_transformer
from phaze.spec.training_plan import AskedPlan, TrainingPlan


def planner_of(
    layers: int = 6, gap: float = 0.05, interval: MeasuredInterval | None = None, **fields: object
) -> TrainingPlanner:
    """Planner of a Llama 2 of few layers; `fields` of the question replace its system, stack and sequence."""
    model = load_transformer("llama2-7b", "test").model_copy(update={"layers": layers})
    given = {"model": model, "system": "h100", "stack": "megatron-core", "sequence": 2048}
    question = AskedPlan.model_validate(given | fields)
    return TrainingPlanner(question, lambda _: interval or MeasuredInterval(None), gap)


def plan_of(planner: TrainingPlanner, rows: int) -> TrainingPlan:
    """Answer with a table of at most this number of rows."""
    plan = planner.answer(planner.best(rows))
    assert isinstance(plan, TrainingPlan)
    return plan
