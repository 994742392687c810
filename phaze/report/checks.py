"""Checks of a study's own results; a study whose results fail one has a defect, not a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.ranking import tied
from phaze.report.anatomy import (
    energy_by_layer,
    layer_chain,
    link_j_between_stages,
    microbatches_of,
    shard_rows,
    stages_of,
)
from phaze.report.certificate_checks import CERTIFICATE_CHECKS
from phaze.report.evidence import KEYS, Check, Evidence
from phaze.report.mapped_checks import MAPPED_CHECKS
from phaze.report.planner_checks import PLANNER_CHECKS
from phaze.report.simulation_checks import SIMULATION_CHECKS
from phaze.report.verdicts import ROUNDING, Verdicts, each, run_checks
from phaze.report.winners import PER_MODEL, candidates
from phaze.report.workers import Workers
from phaze.search.pareto import uncovered
from phaze.tables import Checks, Schedules


def ask_for_checks(evidence: Evidence, workers: Workers) -> Callable[[], pd.DataFrame]:
    """Return what waits for table checks of a study of accelerators, of which every worker makes a share.

    The one that takes as long as the others together is asked for alone, and first.
    """
    alone = [name for name, check in CHECKS.items() if check is energies_add_up]
    others = [name for name in CHECKS if name not in alone]
    length = -(-len(others) // workers.count)  # neighbours look at the same tables
    shares = [alone, *(others[k : k + length] for k in range(0, len(others), length))]
    checks = [{name: CHECKS[name] for name in share} for share in shares]
    asked = [workers.ask(partial(run_checks, share, evidence)) for share in checks]
    return cache(lambda: Checks.check(pd.concat([wait() for wait in asked], ignore_index=True)))


def _placed(e: Evidence) -> pd.DataFrame:
    placements = e.inputs.cluster.placements
    return placements[placements["status"] == "placed"]


def every_point_has_placements(e: Evidence) -> Verdicts:
    """Yield for every model, TMP width, microbatch and shard whether some, and some named, are placed.

    Those are always kept, and say nothing about the others.
    """
    cluster, study = e.inputs.cluster, e.inputs.study
    chips = cluster.architectures.drop_duplicates("architecture").set_index("architecture")
    shards: pd.Series = "shard " + chips["shard"] + chips["named"].map({True: ", named", False: ""})
    seen = set(
        zip(
            cluster.placements["model"],
            cluster.placements["tensor"],
            cluster.placements["microbatch"],
            cluster.placements["architecture"].map(shards),
            strict=True,
        )
    )
    for model in study.models:
        for t in study.workloads[model].tensor:
            for b in study.training.microbatches:
                for shard in shards.unique():
                    yield (model, t, b, shard) in seen, f"{model}, t {t}, b {b}, {shard}: no row"


def every_model_has_a_result(e: Evidence) -> Verdicts:
    """Yield for every model whether it has a result or a reason for none."""
    explained = e.results[(e.results["status"] == "placed") | (e.results["reason"] != "")]
    for model in e.inputs.study.models:
        rows = explained[(explained["model"] == model) & (explained["design"] == PER_MODEL)]
        yield len(rows) == 1, f"{model}: no result on its best architecture"


def infeasible_rows_say_why(e: Evidence) -> Verdicts:
    """Yield for every infeasible placement whether it has a reason and an infinite time."""
    rows = e.inputs.cluster.placements[e.inputs.cluster.placements["status"] == "infeasible"]
    return each((rows["reason"] != "") & np.isinf(rows["time_per_batch_s"]), rows, KEYS)


def no_more_devices_than_there_are(e: Evidence) -> Verdicts:
    """Yield for every placement whether it uses at most the devices of the cluster."""
    rows = _placed(e)
    used = rows["devices_used"]
    fits = (used <= e.inputs.cluster.scenario.devices) & (used >= rows["data"] * rows["stages"])
    return each(fits, rows, KEYS)


def times_follow_from_loads(e: Evidence) -> Verdicts:
    """Yield for every placement whether time = load (ceil(B/d) + s - 1) + sync, and throughput B / time."""
    rows, batch = _placed(e), e.inputs.cluster.scenario.global_batch
    count = np.ceil(batch // rows["microbatch"] / rows["data"])
    time = rows["max_load_s"] * (count + rows["stages"] - 1) + rows["sync_s"]
    same = np.isclose(time, rows["time_per_batch_s"], rtol=ROUNDING, atol=0)
    return each(same & np.isclose(rows["samples_per_s"] * time, batch, rtol=ROUNDING), rows, KEYS)


def bounds_are_not_above_times(e: Evidence) -> Verdicts:
    """Yield for every placement and every solve whether its bound is not above its value."""
    rows = _placed(e)
    yield from each(rows["bound_s"] <= rows["time_per_batch_s"] * (1 + ROUNDING), rows, KEYS)
    solves = e.inputs.solves
    keys = ("model", "tensor", "microbatch", "architecture", "layer", "direction")
    yield from each(solves["bound_s"] <= solves["objective_s"] * (1 + ROUNDING), solves, keys)


def utilisation_is_at_most_one(e: Evidence) -> Verdicts:
    """Yield for every placement whether it does no more than the peak of the tensor cores."""
    rows = _placed(e)
    return each((rows["mfu"] > 0) & (rows["mfu"] <= 1), rows, KEYS)


def experts_are_never_better(e: Evidence) -> Verdicts:
    """Yield for every expert placement whether the searched one of the same point and chip is as fast."""
    keys = list(KEYS[:-1])
    placed = _placed(e)
    searched = placed[placed["planner"] == "phaze"].set_index(keys)["time_per_batch_s"]
    experts = placed[placed["planner"] != "phaze"]
    ours = searched.reindex(pd.MultiIndex.from_frame(experts[keys])).to_numpy()
    return each(ours <= experts["time_per_batch_s"].to_numpy() * (1 + ROUNDING), experts, KEYS)


def more_memory_is_never_slower(e: Evidence) -> Verdicts:
    """Yield for every placement whether it is not slower than the one with the next smaller HBM."""
    keys = [key for key in KEYS if key != "hbm_gib"]
    rows = e.inputs.cluster.placements.sort_values([*keys, "hbm_gib"])
    before = rows.groupby(keys)["time_per_batch_s"].shift().fillna(np.inf)
    return each(rows["time_per_batch_s"] <= before * (1 + ROUNDING), rows, KEYS)


def nothing_beats_the_winner(e: Evidence) -> Verdicts:
    """Yield for every design within the area limit whether the winner is as fast, within the tolerance."""
    placed = e.results[
        (e.results["status"] == "placed") & (e.results["area_um2"] <= e.inputs.cluster.area_limit_um2)
    ]
    winners = placed[placed["design"] == PER_MODEL].set_index("model")["samples_per_s"]
    least = placed["samples_per_s"] * (1 - e.inputs.study.screen.tolerance - ROUNDING)
    best = winners.reindex(placed["model"]).fillna(0.0).to_numpy()
    return each(best >= least.to_numpy(), placed, ("model", "design"))


def stages_are_a_partition(e: Evidence) -> Verdicts:
    """Yield for every result with stages whether they are the model's layers in order, each once."""
    for row, stages in _stages(e):
        ends = [-1, *stages["last_layer"]]
        layers = len(layer_chain(e.inputs, row["model"]))
        follows = [first == end + 1 for first, end in zip(stages["first_layer"], ends, strict=False)]
        whole = all(follows) and ends[-1] == layers - 1 and len(stages) == row["stages"]
        yield (
            whole,
            f"{row['model']}, {row['design']}: {len(stages)} stages up to layer {ends[-1]} of {layers}",
        )


def stages_fit_the_memory(e: Evidence) -> Verdicts:
    """Yield for every stage of a result whether its memory is the sum of its parts and fits the HBM."""
    parts = [f"{part}_bytes" for part in ("weight", "gradient", "optimizer", "activation", "stashed")]
    for row, stages in _stages(e):
        hbm = row["hbm_gib"] * 2**30
        fits = stages["memory_bytes"] <= hbm * (1 + ROUNDING)
        adds_up = np.isclose(stages[parts].sum(axis=1), stages["memory_bytes"], rtol=ROUNDING)
        room = np.isclose(stages["memory_bytes"] + stages["headroom_bytes"], hbm, rtol=ROUNDING)
        yield from each(
            fits & adds_up & room, stages.assign(design=row["design"]), ("model", "design", "stage")
        )


def stages_carry_the_load(e: Evidence) -> Verdicts:
    """Yield for every result with stages whether their loads, devices and time per batch agree."""
    for row, stages in _stages(e):
        load = stages[["forward_s", "backward_s", "transfer_s"]].sum(axis=1)
        adds_up = np.isclose(load, stages["load_s"], rtol=ROUNDING).all()
        devices = int(stages["devices"].sum()) * int(row["data"]) == int(row["devices_used"])
        count = microbatches_of(e.inputs, row) + int(row["stages"]) - 1
        covered = stages["load_s"].max() * count <= row["time_per_batch_s"] * (1 + ROUNDING)
        yield bool(adds_up and devices and covered), f"{row['model']}, {row['design']}"


def _stages(e: Evidence) -> Iterator[tuple[pd.Series, pd.DataFrame]]:
    """Yield every placed result that has stages, with them."""
    for _, row in e.results[e.results["status"] == "placed"].iterrows():
        stages = stages_of(e.inputs.cluster, e.inputs.details, row)
        if len(stages):
            yield row, stages


def schedules_end_with_their_objective(e: Evidence) -> Verdicts:
    """Yield for every layer of a winner whether its schedule ends when the solve says."""
    keys = ["model", "tensor", "microbatch", "architecture", "layer", "direction"]
    solved = e.inputs.solves.set_index(keys)["objective_s"]
    for _, row in e.results[
        (e.results["status"] == "placed") & (e.results["design"] == PER_MODEL)
    ].iterrows():
        schedule = shard_rows(e.inputs.cluster, e.inputs.details, Schedules, row)
        ends = schedule.groupby(keys)["end_s"].max()
        same = np.isclose(ends, solved.reindex(ends.index), rtol=1e-6, atol=0)
        yield from each(same, ends.reset_index(), ("model", "architecture", "layer", "direction"))


def areas_add_up(e: Evidence) -> Verdicts:
    """Yield for every searched architecture whether its parts sum to its area; a named one's may be given."""
    rows = e.inputs.cluster.architectures
    rows = rows[~rows["named"]]
    parts = rows[["tensor_um2", "vector_um2", "l2_um2", "glb_um2"]].sum(axis=1)
    return each(np.isclose(parts, rows["area_um2"], rtol=ROUNDING), rows, ("shard", "architecture"))


def energies_add_up(e: Evidence) -> Verdicts:
    """Yield for every result with energies whether parts and layers have the same sum, shares the sum 1."""
    for (model, design), parts in e.energies.groupby(["model", "design"]):
        row = e.results[(e.results["model"] == model) & (e.results["design"] == design)].iloc[0]
        layers = energy_by_layer(e.inputs, row).drop(columns=["layer", "direction"]).to_numpy().sum()
        layers += link_j_between_stages(e.inputs, row)
        dynamic = parts.loc[parts["part"] != "leakage", "joules_per_sample"].sum()
        same = np.isclose(layers, dynamic, rtol=ROUNDING) and np.isclose(
            parts["share"].sum(), 1, rtol=ROUNDING
        )
        yield bool(same), f"{model}, {design}"


def areas_are_within_the_limit(e: Evidence) -> Verdicts:
    """Yield for every searched architecture whether it is within the area limit."""
    rows = e.inputs.cluster.architectures
    rows = rows[~rows["named"]]
    return each(rows["area_um2"] <= e.inputs.cluster.area_limit_um2 * (1 + ROUNDING), rows, ("architecture",))


def members_of_a_front_beat_each_other(e: Evidence) -> Verdicts:
    """Yield for every member of a front whether no other is as good in time, area and energy."""
    for _, members in e.inputs.fronts.groupby(["model", "area_limit_um2"]):
        yield from each(uncovered(*_objectives(members)), members, _MEMBER)


def fronts_hold_the_winners(e: Evidence) -> Verdicts:
    """Yield for every model whether its front has the fastest of all that was placed of the searched."""
    best = _searched(e).groupby("model")["time_per_batch_s"].min()
    fronts = _largest(e.inputs.fronts)
    fastest = fronts[fronts["throughput"]]
    same = tied(fastest["time_per_batch_s"].to_numpy()) == tied(best.reindex(fastest["model"]).to_numpy())
    return each(same, fastest, _MEMBER)


def no_placement_beats_a_front(e: Evidence) -> Verdicts:
    """Yield for every placement in the searched space whether a member is as good in all, or it is one."""
    placed = _searched(e)
    for model, members in _largest(e.inputs.fronts).groupby("model"):
        mine = placed[placed["model"] == model]
        both = pd.concat([members, mine], ignore_index=True)
        front = np.arange(len(both)) < len(members)
        yield from each(~uncovered(*_objectives(both), front)[~front], mine, KEYS)


def _searched(e: Evidence) -> pd.DataFrame:
    """Return the placements of searched architectures; fronts leave the named ones out."""
    named = e.inputs.cluster.architectures.drop_duplicates("architecture").set_index("architecture")["named"]
    placed = candidates(e.inputs.cluster)
    grid = ~named.reindex(placed["architecture"]).to_numpy(dtype=bool)
    searched: pd.DataFrame = placed[(placed["status"] == "placed") & grid]
    return searched


_MEMBER = ("model", "architecture", "hbm_gib", "tensor", "microbatch", "recompute")


def _objectives(rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    time, joules = (tied(rows[name].to_numpy()) for name in ("time_per_batch_s", "joules_per_sample"))
    return time, rows["area_um2"].to_numpy(), joules


def _largest(fronts: pd.DataFrame) -> pd.DataFrame:
    """Return the fronts within the area limit of the study."""
    largest: pd.DataFrame = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    return largest


CHECKS: dict[str, Check] = {
    "every model, TMP width, microbatch and shard has placements": every_point_has_placements,
    "every model has a result or a reason for none": every_model_has_a_result,
    "infeasible placements say why": infeasible_rows_say_why,
    "no placement uses more devices than there are": no_more_devices_than_there_are,
    "stages are the layers of the model, each once": stages_are_a_partition,
    "memory of every stage adds up and fits the HBM": stages_fit_the_memory,
    "loads and devices of the stages add up": stages_carry_the_load,
    "time per batch follows from load, microbatches and stages": times_follow_from_loads,
    "bounds are not above what was found": bounds_are_not_above_times,
    "utilisation is at most one": utilisation_is_at_most_one,
    "no expert placement beats the searched one": experts_are_never_better,
    "more HBM is never slower": more_memory_is_never_slower,
    "no reported design beats the winner": nothing_beats_the_winner,
    "schedules end when their solve says": schedules_end_with_their_objective,
    "areas of the parts sum to the chip": areas_add_up,
    "searched architectures are within the area limit": areas_are_within_the_limit,
    "energies by part and by layer agree": energies_add_up,
    "members of a front beat each other": members_of_a_front_beat_each_other,
    "the fastest of the searched is on the front": fronts_hold_the_winners,
    "no placement beats the front": no_placement_beats_a_front,
    **CERTIFICATE_CHECKS,
    **PLANNER_CHECKS,
    **SIMULATION_CHECKS,
    **MAPPED_CHECKS,
}
"""What must hold of every study, as sentences."""
