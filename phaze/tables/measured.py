"""Published training runs compared with predictions, and the prediction errors."""

from phaze.tables.base import Column, Table, count, real, text

ALL_SOURCES = "all"
"""Source name that stands for all sources together."""
ALL_MEASURED = "all measured"
"""Source name that stands for all sources whose times do not look simulated."""
_RUN = {"source": text("file of config/measured"), "number": count("row of the file, from 1", 1)}
_SOURCE = {"source": text("file of config/measured, or all")}


def _maybe(about: str) -> Column:
    return real(f"{about}; infinite where nothing says it", finite=False)


class MeasuredRuns(Table):
    """Runs of the sources: measured and predicted time and memory."""

    keys = _RUN
    columns = {
        "label": text("model, as the source calls it"),
        "group": text("model, devices and batch, in which layouts are compared"),
        "stack": text("software stack"),
        "device": text("device"),
        "parallelism": text("kinds of parallelism"),
        "experts": text("whether experts are on ranks of their own", "no", "yes"),
        "measured_s": _maybe("measured time of a batch"),
        "predicted_s": _maybe("predicted time"),
        "prudent_s": _maybe("predicted time with no more overlap than is proven"),
        "time_low_s": _maybe("predicted to be exceeded by nine of ten runs, by the errors of other sources"),
        "time_high_s": _maybe("by one of ten"),
        "left_out_s": _maybe("predicted time by constants that are fitted without the source"),
        "measured_gib": _maybe("measured memory of the fullest device"),
        "predicted_gib": _maybe("predicted memory"),
        "outcome": text("what happened", "ok", "oom"),
        "status": text("ok, or why nothing is predicted or does not fit"),
    }


class SourceScores(Table):
    """Prediction errors by source, relative to the measured values."""

    keys = _SOURCE
    columns = {
        "rows": count("runs"),
        "answered": count("runs with a predicted and a measured time"),
        "mean_error": _maybe("mean absolute error of the time"),
        "median_error": _maybe("median of the absolute errors"),
        "bias": real("mean of the errors with their signs; positive: predicted too long", None, finite=False),
        "p90_error": _maybe("error that a tenth of the runs exceed"),
        "worst_error": _maybe("largest absolute error"),
        "within_10": _maybe("share of runs with an error up to 10 %"),
        "within_15": _maybe("up to 15 %"),
        "left_out_error": _maybe("mean absolute error by constants that are fitted without the source"),
        "covered": _maybe("share of runs in their interval by the errors of other sources"),
        "interval_width": _maybe("mean width of these intervals over the predicted time"),
        "within_prudent": _maybe("share of runs that take at most their prudent time"),
        "prudent_over_expected": _maybe("median of prudent over predicted time"),
        "memory_error": _maybe("mean absolute error of the memory"),
        "memory_bias": real("with signs", None, finite=False),
        "memory_covered": _maybe("share of runs whose memory lies in its range"),
        "verdicts": _maybe("share of runs of which it is predicted rightly whether they fit"),
        "rank_correlation": real("Spearman's, over all runs", None, finite=False),
        "groups": count("models and sizes with three layouts or more"),
        "group_correlation": real("mean of Spearman's within groups", None, finite=False),
        "regret": _maybe("mean time lost by the layout that is predicted fastest"),
        "worst_regret": _maybe("largest of these"),
        "prudent_regret": _maybe("mean time lost by the layout with the least prudent time"),
        "refused": text("why runs have no prediction, with how many each"),
    }


class GroupRegrets(Table):
    """Ranking of the measured layouts of one model, device count and batch, and the cost of the choice."""

    keys = {"source": text("file of config/measured"), "group": text("model, devices and batch")}
    columns = {
        "layouts": count("measured layouts", 1),
        "correlation": real("Spearman's, of predicted and measured times", None, finite=False),
        "fastest_s": real("least measured time"),
        "chosen_s": real("measured time of the layout that is predicted fastest"),
        "prudently_chosen_s": real("measured time of the layout with the least prudent time"),
        "regret": real("time lost by the choice of the fastest, over the least"),
    }


class ToolErrors(Table):
    """Published predictions of other tools, compared with ours for the same runs."""

    keys = {"tool": text("tool"), "source": text("file of config/measured")}
    columns = {
        "rows": count("runs that both predict", 1),
        "error": real("mean absolute error of the tool's time"),
        "ours": real("mean absolute error of our time"),
        "worst": real("largest error of the tool"),
        "our_worst": real("our largest error"),
        "memory_error": _maybe("mean absolute error of the tool's memory"),
        "our_memory_error": _maybe("of ours"),
        "published": text("where the tool's predictions are published"),
    }


class FittedConstants(Table):
    """Constants fitted to measured runs, with the sources they are fitted to."""

    keys = {"of": text("device or stack"), "key": text("key in its file")}
    columns = {"value": real("value"), "sources": text("sources that it is fitted to")}
