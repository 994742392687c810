"""Consistency checks of a study's results; a failed check is a defect, not a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.ranking import tied
from phaze.cost.space import COMPONENTS
from phaze.layout import layouts_of
from phaze.pages.verdicts import ROUNDING, Checklist, Verdicts, at_most, check_rows, close
from phaze.report import anatomy
from phaze.report.findings import PER_MODEL, placed_rows
from phaze.report.inputs import Inputs
from phaze.search.pareto import uncovered
from phaze.search.winners import candidates, space_of
from phaze.tables import CAUSES, COMMON, Schedules
from phaze.tables.columns import widths_of

KEYS = ("model", "layout", "architecture", "hbm_gib", "recompute", "planner")
"""Key columns of a placement."""

VERIFIED = ("confirmed", "unproven")
"""Verdicts on re-solved points that agree with the certificate."""
CHECKS: Checklist[Evidence] = Checklist()
"""Checks that apply to every study."""
CERTIFICATE_CHECKS: Checklist[Evidence] = Checklist()
"""Checks that apply to every certificate."""
_SOLVED = ("model", "layout", "architecture", "layer", "direction")
_MEMBER = ("model", "architecture", "hbm_gib", "layout", "recompute")


@dataclass(frozen=True)
class Evidence:
    """Inputs of the checks: the tables of a study, and the results and energies derived from them."""

    inputs: Inputs
    results: pd.DataFrame
    energies: pd.DataFrame

    @property
    def placed(self) -> pd.DataFrame:
        """Feasible placements."""
        placements = self.inputs.cluster.placements
        return placements[placements["status"] == "placed"]

    @property
    def searched(self) -> pd.DataFrame:
        """Architectures of the search grid, without those that the study names."""
        chips = self.inputs.cluster.architectures
        return chips[~chips["named"]]


@CHECKS.hold("every model, TMP width, microbatch and shard has placements")
def _every_point_has_placements(e: Evidence) -> Verdicts:
    """Check that every model, layout and shard has placements, separately for named architectures."""
    cluster, study = e.inputs.cluster, e.inputs.study
    chips = cluster.chips
    shards: pd.Series = "shard " + chips["shard"] + chips["named"].map({True: ", named", False: ""})
    rows = cluster.placements
    seen = set(zip(rows["model"], rows["layout"], rows["architecture"].map(shards), strict=True))
    for model in study.models:
        layouts = layouts_of(study.workloads[model].tensor, study.training.microbatches)
        for layout, shard in product(layouts, shards.unique()):
            about = f"{model}, t {layout.tp}, b {layout.microbatch}, {shard}: no row"
            yield (model, layout.key, shard) in seen, about


@CHECKS.hold("every model has a result or a reason for none")
def _every_model_has_a_result(e: Evidence) -> Verdicts:
    explained = e.results[(e.results["status"] == "placed") | (e.results["reason"] != "")]
    for model in e.inputs.study.models:
        rows = explained[(explained["model"] == model) & (explained["design"] == PER_MODEL)]
        yield len(rows) == 1, f"{model}: no result on its best architecture"


@CHECKS.hold("infeasible placements say why")
def _infeasible_rows_say_why(e: Evidence) -> Verdicts:
    rows = e.inputs.cluster.placements[e.inputs.cluster.placements["status"] == "infeasible"]
    return check_rows((rows["reason"] != "") & np.isinf(rows["time_per_batch_s"]), rows, KEYS)


@CHECKS.hold("no placement uses more devices than there are")
def _no_more_devices_than_there_are(e: Evidence) -> Verdicts:
    rows = e.placed
    used = rows["devices_used"]
    fits = (used <= e.inputs.cluster.scenario.devices) & (used >= rows["data"] * rows["stages"])
    return check_rows(fits, rows, KEYS)


@CHECKS.hold("stages are the layers of the model, each once")
def _stages_are_a_partition(e: Evidence) -> Verdicts:
    for row, stages in _stages(e):
        layers, last = len(anatomy.layer_chain(e.inputs, row["model"])), stages["last_layer"].iloc[-1]
        covered = are_layers_once(stages, layers) and len(stages) == row["stages"]
        yield covered, f"{row['model']}, {row['design']}: {len(stages)} stages up to layer {last} of {layers}"


def are_layers_once(stages: pd.DataFrame, layers: int) -> bool:
    """True if the stages cover all layers in order, each layer once."""
    ends = [-1, *stages["last_layer"]]
    return ends[-1] == layers - 1 and [end + 1 for end in ends[:-1]] == stages["first_layer"].to_list()


@CHECKS.hold("memory of every stage adds up and fits the HBM")
def _stages_fit_the_memory(e: Evidence) -> Verdicts:
    parts = [f"{part}_bytes" for part in ("weight", "gradient", "optimizer", "activation", "stashed")]
    for row, stages in _stages(e):
        hbm, used = row["hbm_gib"] * 2**30, stages["memory_bytes"]
        adds_up = close(stages[parts].sum(axis=1), used) & close(used + stages["headroom_bytes"], hbm)
        named = stages.assign(design=row["design"])
        yield from check_rows(at_most(used, hbm) & adds_up, named, ("model", "design", "stage"))


@CHECKS.hold("loads and devices of the stages add up")
def _stages_carry_the_load(e: Evidence) -> Verdicts:
    for row, stages in _stages(e):
        load = stages[["forward_s", "backward_s", "transfer_s"]].sum(axis=1)
        devices = int(stages["devices"].sum()) * int(row["data"]) == int(row["devices_used"])
        count = anatomy.microbatches_of(e.inputs, row) + int(row["stages"]) - 1
        covered = at_most(stages["load_s"].max() * count, row["time_per_batch_s"])
        holds = close(load, stages["load_s"]).all() and devices and covered
        yield bool(holds), f"{row['model']}, {row['design']}"


def _stages(e: Evidence) -> Iterator[tuple[pd.Series, pd.DataFrame]]:
    """Yield each placed result that has stages, with its stages."""
    for _, row in e.results[e.results["status"] == "placed"].iterrows():
        stages = anatomy.stages_of(e.inputs, row)
        if len(stages):
            yield row, stages


@CHECKS.hold("time per batch follows from load, microbatches and stages")
def _times_follow_from_loads(e: Evidence) -> Verdicts:
    rows, batch = e.placed, e.inputs.cluster.scenario.global_batch
    # 1F1B: the slowest stage works on every microbatch, plus one load per other stage to fill and drain
    count = np.ceil(batch // widths_of(rows, "microbatch") / rows["data"])
    time = rows["max_load_s"] * (count + rows["stages"] - 1) + rows["sync_s"]
    same = close(time, rows["time_per_batch_s"]) & close(rows["samples_per_s"] * time, batch)
    return check_rows(same, rows, KEYS)


@CHECKS.hold("bounds are not above what was found")
def _bounds_are_not_above_times(e: Evidence) -> Verdicts:
    rows, solves = e.placed, e.inputs.solves
    yield from check_rows(at_most(rows["bound_s"], rows["time_per_batch_s"]), rows, KEYS)
    yield from check_rows(at_most(solves["bound_s"], solves["objective_s"]), solves, _SOLVED)


@CHECKS.hold("utilisation is at most one")
def _utilisation_is_at_most_one(e: Evidence) -> Verdicts:
    for mfu in (e.placed["mfu"], e.placed["mfu_paper"]):
        yield from check_rows((mfu > 0) & (mfu <= 1), e.placed, KEYS)


@CHECKS.hold("no expert placement beats the searched one")
def _experts_are_never_better(e: Evidence) -> Verdicts:
    keys, placed = list(KEYS[:-1]), e.placed
    searched = placed[placed["planner"] == "phaze"].set_index(keys)["time_per_batch_s"]
    experts = placed[placed["planner"] != "phaze"]
    ours = searched.reindex(pd.MultiIndex.from_frame(experts[keys])).to_numpy()
    return check_rows(at_most(ours, experts["time_per_batch_s"].to_numpy()), experts, KEYS)


@CHECKS.hold("more HBM is never slower")
def _more_memory_is_never_slower(e: Evidence) -> Verdicts:
    keys = [key for key in KEYS if key != "hbm_gib"]
    rows = e.inputs.cluster.placements.sort_values([*keys, "hbm_gib"])
    # the row before has the next smaller HBM; the first one has none
    before = rows.groupby(keys)["time_per_batch_s"].shift().fillna(np.inf)
    return check_rows(at_most(rows["time_per_batch_s"], before), rows, KEYS)


@CHECKS.hold("no reported design beats the winner")
def _nothing_beats_the_winner(e: Evidence) -> Verdicts:
    within = e.results["area_um2"] <= e.inputs.cluster.area_limit_um2
    placed = e.results[(e.results["status"] == "placed") & within]
    winners = placed[placed["design"] == PER_MODEL].set_index("model")["samples_per_s"]
    # the winner has the smallest HBM within the tolerance, so that it may be slower by the tolerance
    least = placed["samples_per_s"] * (1 - e.inputs.study.screen.tolerance - ROUNDING)
    best = winners.reindex(placed["model"]).fillna(0.0).to_numpy()
    return check_rows(best >= least.to_numpy(), placed, ("model", "design"))


@CHECKS.hold("schedules end when their solve says")
def _schedules_end_with_their_objective(e: Evidence) -> Verdicts:
    solved = e.inputs.solves.set_index(list(_SOLVED))["objective_s"]
    for _, row in placed_rows(e.results, PER_MODEL).iterrows():
        ends = anatomy.shard_rows(e.inputs, Schedules, row).groupby(list(_SOLVED))["end_s"].max()
        same = np.isclose(ends, solved.reindex(ends.index), rtol=1e-6, atol=0)
        yield from check_rows(same, ends.reset_index(), ("model", "architecture", "layer", "direction"))


@CHECKS.hold("areas of the parts sum to the chip")
def _areas_add_up(e: Evidence) -> Verdicts:
    parts = e.searched[COMPONENTS].sum(axis=1)
    return check_rows(close(parts, e.searched["area_um2"]), e.searched, ("shard", "architecture"))


@CHECKS.hold("searched architectures are within the area limit")
def _areas_are_within_the_limit(e: Evidence) -> Verdicts:
    within = at_most(e.searched["area_um2"], e.inputs.cluster.area_limit_um2)
    return check_rows(within, e.searched, ("architecture",))


@CHECKS.hold("energies by part and by layer agree")
def _energies_add_up(e: Evidence) -> Verdicts:
    for (model, design), parts in e.energies.groupby(["model", "design"]):
        row = e.results[(e.results["model"] == model) & (e.results["design"] == design)].iloc[0]
        layers = anatomy.energy_by_layer(e.inputs, row).drop(columns=["layer", "direction"]).to_numpy().sum()
        layers += anatomy.link_j_between_stages(e.inputs, row)
        # leakage follows from area and time, not from operators
        dynamic = parts.loc[parts["part"] != "leakage", "joules_per_sample"].sum()
        yield bool(close(layers, dynamic) and close(parts["share"].sum(), 1)), f"{model}, {design}"


@CHECKS.hold("members of a front beat each other")
def _members_of_a_front_beat_each_other(e: Evidence) -> Verdicts:
    for _, members in e.inputs.fronts.groupby(["model", "area_limit_um2"]):
        yield from check_rows(uncovered(*_objectives(members)), members, _MEMBER)


@CHECKS.hold("the fastest of the searched is on the front")
def _fronts_hold_the_winners(e: Evidence) -> Verdicts:
    best = _searched(e).groupby("model")["time_per_batch_s"].min()
    fronts = _largest(e.inputs.fronts)
    fastest = fronts[fronts["throughput"]]
    # on the grid on which ties are decided, times that differ by rounding compare equal
    same = tied(fastest["time_per_batch_s"].to_numpy()) == tied(best.reindex(fastest["model"]).to_numpy())
    return check_rows(same, fastest, _MEMBER)


@CHECKS.hold("no placement beats the front")
def _no_placement_beats_a_front(e: Evidence) -> Verdicts:
    placed = _searched(e)
    for model, members in _largest(e.inputs.fronts).groupby("model"):
        rows = placed[placed["model"] == model]
        both = pd.concat([members, rows], ignore_index=True)
        # only members may dominate; a placement that no member dominates would belong to the front
        front = np.arange(len(both)) < len(members)
        yield from check_rows(~uncovered(*_objectives(both), front)[~front], rows, KEYS)


def _searched(e: Evidence) -> pd.DataFrame:
    """Feasible placements to check the Pareto fronts against; excludes architectures requested by name."""
    placed = candidates(e.inputs.cluster)
    grid = ~e.inputs.cluster.chips["named"].reindex(placed["architecture"]).to_numpy(dtype=bool)
    searched: pd.DataFrame = placed[(placed["status"] == "placed") & grid]
    return searched


def _objectives(rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    time, joules = (tied(rows[name].to_numpy()) for name in ("time_per_batch_s", "joules_per_sample"))
    return time, rows["area_um2"].to_numpy(), joules


def _largest(fronts: pd.DataFrame) -> pd.DataFrame:
    """Pareto fronts at the largest area limit, which is the study's limit."""
    largest: pd.DataFrame = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    return largest


@CERTIFICATE_CHECKS.hold("every point of the space is excluded or solved")
def _every_point_is_accounted_for(e: Evidence) -> Verdicts:
    study, table = e.inputs.study, e.inputs.certificates.set_index("model")
    each_size = len(study.training.recompute) * len(study.training.microbatches)
    names = space_of(e.inputs.cluster.architectures, e.inputs.cluster.area_limit_um2)
    # an architecture with an HBM capacity of its own is not combined with those of the study
    has_size = e.inputs.cluster.chips.loc[names, "hbm_gib"] > 0
    sizes = int(has_size.sum()) + int((~has_size).sum()) * len(study.training.hbm_gib)
    counts = table[list(CAUSES)].sum(axis=1)
    several = {model: each_size * len(study.workloads[model].tensor) for model in study.models}
    # a point of the common architecture is a chip with an HBM capacity, for any layout
    for model, number in {**several, COMMON: 1}.items():
        same = counts.get(model, 0) == table["points"].get(model, 0) == sizes * number
        yield bool(same), f"{model}: {counts.get(model, 0)} of {sizes * number} points"


@CERTIFICATE_CHECKS.hold("nothing is left that could be better than the best")
def _nothing_is_left_that_could_be_better(e: Evidence) -> Verdicts:
    table = e.inputs.certificates
    walks = e.inputs.study.screen.strategy != "certified"
    return check_rows(((table["open"] == 0) | walks) & (table["contradictions"] == 0), table, ("model",))


@CERTIFICATE_CHECKS.hold("certificates are about the best placement")
def _certificates_are_about_the_best(e: Evidence) -> Verdicts:
    best = candidates(e.inputs.cluster).groupby("model")["samples_per_s"].max()
    table = e.inputs.certificates[e.inputs.certificates["model"] != COMMON]
    same = close(table["best"], table["model"].map(best).fillna(0.0))
    yield from check_rows(same & (table["excluded"] <= table["bound"]), table, ("model", "best"))
    winners = placed_rows(e.results, PER_MODEL)
    certified = table.set_index("model")["best"].reindex(winners["model"]).to_numpy()
    least = certified * (1 - e.inputs.study.screen.tolerance)
    yield from check_rows(
        winners["samples_per_s"] >= least * (1 - ROUNDING), winners, ("model", "samples_per_s")
    )


@CERTIFICATE_CHECKS.hold("points solved again agree with the certificate")
def _points_solved_again_agree(e: Evidence) -> Verdicts:
    audits, table = e.inputs.audits, e.inputs.certificates
    yield from check_rows(audits["verdict"].isin(VERIFIED), audits, (*KEYS[:-1], "verdict"))
    # points that were solved or are open were not excluded
    causes = [cause for cause in CAUSES if cause not in ("solved", "open")]
    excluded = int(table.loc[table["model"] != COMMON, causes].to_numpy().sum())
    required = min(e.inputs.study.certify.points, excluded)
    drawn = int((audits["chosen"] != "best").sum())
    yield drawn >= required, f"{drawn} of {required} excluded points were solved again"
