"""Published measurements of training runs as tables of runs; run as a module it predicts all of them.

Facts of each source are in ../shared/data/measured; what its rows do not say is said here once for all rows.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from phaze.plan.lowered import load_machine
from phaze.plan.plan import Machine
from phaze.validate.table import Accuracy, predict_table

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "measured"
Record = dict[str, object]


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of measurements."""
    table = pd.read_csv(FOLDER / name, dtype=str, keep_default_na=False)
    return [dict(zip(table.columns, values, strict=True)) for values in table.to_numpy()]


def megatron_sc21() -> list[Record]:
    """Return Table 1 of Narayanan et al., SC 2021: full recomputation, interleaved (Section 5.1); microbatch
    and chunks are not printed.
    """
    return [
        {
            **{name: row[name] for name in ("hidden", "layers", "seq", "vocab", "gpus", "tp", "pp")},
            "label": f"{row['params_b']}B",
            "heads": row["attention_heads"],
            "global_batch": row["global_batch"],
            "recompute": "full",
            "schedule": "interleaved" if int(row["pp"]) > 1 else "1f1b",
            "measured_s": row["iter_time_s_derived"],
        }
        for row in read("megatron_sc21_a100_table1.csv")
    ]


def korthikanti(selective: bool) -> list[Record]:
    """Return the four models of Korthikanti et al., MLSys 2023, with full recomputation, or with selective
    recomputation and sequence parallelism.
    """
    return [
        {
            **{name: row[name] for name in ("heads", "hidden", "layers", "seq", "tp", "pp", "gpus")},
            "label": row["model"],
            "vocab": 51200,
            "microbatch": row["micro_batch"],
            "global_batch": row["global_batch"],
            "recompute": "selective" if selective else "full",
            "sequence_parallel": selective,
            "schedule": "interleaved" if int(row["interleave"]) > 1 else "1f1b",
            "chunks": row["interleave"],
            "measured_s": row["iter_s_seqsel" if selective else "iter_s_full"],
        }
        for row in read("korthikanti_mlsys23.csv")
    ]


def vtrain() -> list[Record]:
    """Return the multi-node runs of vTrain (Bang et al., MICRO 2024): full recomputation, 1F1B, GPT-3's
    vocabulary.
    """
    return [
        {
            "label": f"{row['Parameters (billion)']}B",
            "hidden": row["hidden size"],
            "heads": row["attention heads"],
            "layers": row["# layers"],
            "seq": row["sequence length"],
            "vocab": 51200,
            "gpus": row["# GPUs"],
            "tp": row["tensor parallelism"],
            "pp": row["pipeline parallelism"],
            "dp": row["data parallelism"],
            "microbatch": row["micro batch"],
            "global_batch": row["global batch"],
            "recompute": "full",
            "schedule": "1f1b",
            "measured_s": float(row["iteration time (ms)"]) / 1e3,
        }
        for row in read("vtrain_ground_truth_multi.csv")
    ]


def h100() -> list[Record]:
    """Return the Megatron-LM benchmarks of 2024: FlashAttention and no other recomputation, sequence
    parallelism, distributed optimizer with its communication overlapped; interleaved where there are stages.
    """
    found = []
    for row in read("megatron_lm_h100_2024.csv"):
        sizes = {
            name: int(row[name]) for name in ("hidden", "layers", "seq", "vocab", "global_batch", "gpus")
        }
        flops = 72 * sizes["global_batch"] * sizes["seq"] * sizes["layers"] * sizes["hidden"] ** 2
        flops *= (
            1 + sizes["seq"] / 6 / sizes["hidden"] + sizes["vocab"] / 12 / sizes["layers"] / sizes["hidden"]
        )
        found.append(
            {
                **sizes,
                "label": f"{row['model_b']}B",
                "heads": row["attention_heads"],
                **{name: row[name] for name in ("tp", "pp", "dp")},
                "flash_attention": True,
                "sequence_parallel": int(row["tp"]) > 1,
                "schedule": "interleaved" if int(row["pp"]) > 1 else "1f1b",
                "zero": 1,
                "overlap_dp": True,
                "measured_s": flops / sizes["gpus"] / float(row["tflops_gpu"]) / 1e12,
            }
        )
    return found


def bloom() -> list[Record]:
    """Return those runs of BLOOM's topology sweep (BigScience, 2022) that say hidden, layers and heads: full
    recomputation, 1F1B, ZeRO 1, BLOOM's vocabulary.
    """
    found = []
    for row in read("bloom_a100_topology_sweep.csv"):
        hidden, layers = (re.search(rf"N{key}=(\d+)", row["context"]) for key in ("HIDDEN", "LAYERS"))
        if hidden and layers and row["NHEADS"] and row["flops_formula"] == "megatron-exact":
            widths = {name: int(row[name.upper()]) for name in ("tp", "pp", "dp")}
            found.append(
                {
                    **widths,
                    "label": row["Size"],
                    "hidden": hidden[1],
                    "heads": row["NHEADS"],
                    "layers": layers[1],
                    "seq": 2048,
                    "vocab": 250880,
                    "gpus": widths["tp"] * widths["pp"] * widths["dp"],
                    "microbatch": row["MBS"],
                    "global_batch": row["GBS"],
                    "recompute": "full",
                    "zero": 1,
                    "measured_s": row["Sec/it"],
                }
            )
    return found


SOURCES: dict[str, tuple[str, Callable[[], list[Record]]]] = {
    "Megatron SC'21 Table 1": ("a100-selene", megatron_sc21),
    "Korthikanti full recompute": ("a100-selene", lambda: korthikanti(selective=False)),
    "Korthikanti sequence parallel, selective": ("a100-selene", lambda: korthikanti(selective=True)),
    "vTrain": ("a100-vtrain", vtrain),
    "BLOOM topology sweep": ("a100-jean-zay", bloom),
    "Megatron-LM H100 2024": ("h100", h100),
}


PALM_TABLE_IV = {
    "18.4B": (114.294, 116.415),
    "39.1B": (100.230, 111.565),
    "76.1B": (96.601, 115.898),
    "145.6B": (83.888, 95.720),
    "310.1B": (51.140, 58.738),
    "529.6B": (40.007, 47.440),
}
"""Sequences a second as PALM predicts them, and as it takes them for published: without attention and
vocabulary, so that they are up to 10 % above those of the measured times (Fang et al., Table IV).
"""


def palm_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return PALM's Table IV beside the predictions of SC 2021, Table 1, with errors on both figures."""
    rows = table.set_index("label").loc[list(PALM_TABLE_IV)]
    palm = pd.DataFrame(PALM_TABLE_IV, index=["palm", "published_there"]).T
    batch = pd.to_numeric(rows["global_batch"])
    palm["measured"] = batch / pd.to_numeric(rows["measured_s"])
    palm["predicted"] = batch / rows["time_s"]
    for who in ("palm", "predicted"):
        for figure in ("published_there", "measured"):
            palm[f"{who}_error_on_{figure}"] = 100 * (palm[who] / palm[figure] - 1)
    return palm


def predict_records(records: list[Record], machine: Machine) -> tuple[pd.DataFrame, Accuracy | None]:
    """Return records with their predictions, by way of a CSV file as a user writes one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        pd.DataFrame(records).to_csv(path, index=False)
        return predict_table(path, machine)


def lines() -> Iterator[str]:
    """Yield the predictions of all sources beside the measurements."""
    for name, (system, records) in SOURCES.items():
        table, accuracy = predict_records(records(), load_machine(system))
        yield f"\n{name} on {system}\n"
        measured = pd.to_numeric(table["measured_s"])
        table["error"] = (100 * (table["time_s"] / measured - 1)).map("{:+.1f} %".format)
        columns = [
            "label",
            "tp",
            "pp",
            "microbatch_used",
            "chunks_used",
            "measured_s",
            "time_s",
            "error",
            "slowest_s",
        ]
        columns += [
            "memory_gib",
            "activation_gib",
            "bubble_share",
            "exposed_communication_share",
            "bound_by",
            "status",
        ]
        yield table[columns].to_string(index=False, float_format="{:.2f}".format)
        yield str(accuracy)
        if records is megatron_sc21:
            yield "\nPALM's Table IV, sequences a second and errors in %\n"
            yield palm_table(table).to_string(float_format="{:.1f}".format)


if __name__ == "__main__":
    for line in lines():
        sys.stdout.write(line + "\n")
