"""Published training runs compared with predictions, and the prediction errors."""

from phaze.tables.base import Column, Table, count, real, text

ALL_SOURCES = "all"
"""Source name that denotes all sources together."""
ALL_MEASURED = "all measured"
"""Source name that denotes all sources whose times do not look simulated."""
_RUN = {"source": text("file of config/measured"), "number": count("row of the file, from 1", 1)}
_SOURCE = {"source": text("file of config/measured, or all")}


def _maybe(about: str) -> Column:
    return real(f"{about}; infinite if unknown", finite=False)


class MeasuredRuns(Table):
    """Published training runs, with their measured and predicted time and memory."""

    keys = _RUN
    columns = {
        "label": text("model, as named by the source"),
        "group": text("model, batch, devices, system, stack and precision, whose layouts are compared"),
        "stack": text("software stack"),
        "device": text("device"),
        "parallelism": text("kinds of parallelism"),
        "experts": text("routing of experts sharded across ranks, if any", "no", "balanced", "natural"),
        "measured_s": _maybe("measured time of a batch"),
        "predicted_s": _maybe("predicted time"),
        "prudent_s": _maybe("predicted time with only the proven overlap"),
        "time_low_s": _maybe("lower end of the 80 % interval, from the errors of other sources"),
        "time_high_s": _maybe("upper end of the 80 % interval"),
        "left_out_s": _maybe("predicted time with constants fitted without the source"),
        "measured_gib": _maybe("measured memory of the device with peak memory"),
        "predicted_gib": _maybe("predicted memory"),
        "outcome": text("outcome of the run", "ok", "oom"),
        "status": text("ok, or the reason for a missing prediction or for not fitting"),
    }


class SourceScores(Table):
    """Prediction errors by source, relative to the measured values."""

    keys = _SOURCE
    columns = {
        "rows": count("runs"),
        "answered": count("runs with a predicted and a measured time"),
        "mean_error": _maybe("mean absolute error of the time"),
        "median_error": _maybe("median of the absolute errors"),
        "bias": real("mean signed error; positive: predicted too long", None, finite=False),
        "p90_error": _maybe("90th percentile of the absolute errors"),
        "worst_error": _maybe("largest absolute error"),
        "within_10": _maybe("share of runs with an error up to 10 %"),
        "within_15": _maybe("share of runs with an error up to 15 %"),
        "left_out_error": _maybe("mean absolute error with constants fitted without the source"),
        "intervals": count("runs with an interval, from the errors of other sources"),
        "covered": _maybe("share of these runs inside their interval"),
        "interval_width": _maybe("mean width of these intervals over the predicted time"),
        "within_prudent": _maybe("share of runs within their prudent time"),
        "prudent_over_expected": _maybe("median ratio of prudent and predicted time"),
        "within_high": _maybe("share of runs within the upper end of the 80 % interval of prudent time"),
        "high_over_expected": _maybe("median ratio of that time and the predicted one"),
        "memory_error": _maybe("mean absolute error of the memory"),
        "memory_bias": real("mean signed error of the memory", None, finite=False),
        "memory_covered": _maybe("share of runs inside their memory range"),
        "verdicts": _maybe("share of runs for which fitting is predicted correctly"),
        "rank_correlation": real("Spearman's rank correlation over all runs", None, finite=False),
        "groups": count("groups of at least three runs of one release, with at least two layouts"),
        "group_correlation": real("mean of Spearman's rank correlation within groups", None, finite=False),
        "regret": _maybe("mean relative time lost by choosing the layout predicted as the fastest"),
        "worst_regret": _maybe("largest relative time lost by choosing the layout predicted as the fastest"),
        "prudent_regret": _maybe("mean relative time lost by choosing the smallest prudent time"),
        "release_groups": count("groups of layouts that were measured with different releases"),
        "release_regret": _maybe("mean relative time lost in these groups, as in regret"),
        "worst_release_regret": _maybe("largest relative time lost in these groups"),
        "refused": text("reasons for missing predictions, with counts"),
    }


class GroupRegrets(Table):
    """Rank correlation of the layouts of a group, and time lost by running the predicted best layout."""

    keys = {
        "source": text("file of config/measured"),
        "group": text("model, batch, devices, system, stack and precision"),
    }
    columns = {
        "layouts": count("measured layouts", 2),
        "releases": count("releases of the software in which they were measured", 1),
        "correlation": real("Spearman's correlation of predicted and measured times", None, finite=False),
        "fastest_s": real("smallest measured time"),
        "chosen_s": real("measured time of the layout predicted as the fastest"),
        "prudently_chosen_s": real("measured time of the layout with the smallest prudent time"),
        "regret": real("relative time lost by choosing the layout predicted as the fastest"),
    }


class ToolErrors(Table):
    """Published predictions of other tools, compared with ours for the same runs."""

    keys = {"tool": text("tool"), "source": text("file of config/measured")}
    columns = {
        "rows": count("runs that both tools predict", 1),
        "error": real("mean absolute error of the tool's time"),
        "ours": real("mean absolute error of our time"),
        "worst": real("largest error of the tool"),
        "our_worst": real("our largest error"),
        "memory_error": _maybe("mean absolute error of the tool's memory"),
        "our_memory_error": _maybe("mean absolute error of our memory"),
        "published": text("publication of the tool's predictions"),
    }


class FittedConstants(Table):
    """Constants fitted to measured runs, with the sources they are fitted to."""

    keys = {"of": text("device or stack"), "key": text("key in its file")}
    columns = {"value": real("value"), "sources": text("sources that it is fitted to")}
