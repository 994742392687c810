"""Rows of a table of runs: defaults, mistakes, and open fields."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.machines import load_machine
from phaze.validate.rows import COLUMNS, LAYOUT, READ, read_rows, read_texts
from phaze.validate.table import predict_table

HEAD = "hidden,heads,layers,seq,vocab,gpus,global_batch"
SIZES = "1024,16,8,512,50000,16,64"


def rows_of(folder: Path, columns: str = "", values: str = "") -> tuple:
    path = folder / "runs.csv"
    path.write_text(f"{HEAD}{columns}\n{SIZES}{values}\n")
    return read_rows(path)[1]


def test_what_a_row_does_not_say_has_a_default(tmp_path: Path) -> None:
    run = rows_of(tmp_path, ",tp,pp,microbatch", ",2,2,1")[0].runs[0]
    layout = run.layout
    assert (layout.dp, layout.recompute, run.schedule, layout.vp, layout.zero) == (4, "none", "1f1b", 1, 0)
    assert (run.layout.optimizer, layout.precision, run.overlap, layout.sequence_parallel) == (
        "adam",
        "mixed",
        None,
        False,
    )
    assert (run.model.kv_heads, run.model.feed_forward) == (16, 4096)


@pytest.mark.parametrize(
    ("columns", "values", "compute", "precision"),
    [
        (",compute", ",MXFP8", "mxfp8", "mixed"),
        (",compute", ",fp8_cs", "fp8-cs", "mixed"),
        (",compute", ",tensorwise", "fp8-cs", "mixed"),
        (",precision", ",fp8-block", "fp8-block", "mixed"),
        (",precision,compute", ",fp8,delayed", "fp8", "mixed"),
        (",precision,compute", ",half,nvfp4", "nvfp4", "half"),
        (",precision", ",bf16", "bf16", "mixed"),
    ],
)
def test_compute_has_the_names_of_plan(
    columns: str, values: str, compute: str, precision: str, tmp_path: Path
) -> None:
    (row,) = rows_of(tmp_path, columns, values)
    assert row.problem == ""
    assert (row.runs[0].layout.compute, row.runs[0].layout.precision) == (compute, precision)


def test_names_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, ",precision,compute", ",fp8,bf16")
    assert row.problem == "precision and compute must agree, got 'fp8' and 'bf16'"


def test_the_vocabulary_is_padded_as_megatron_pads_it(tmp_path: Path) -> None:
    assert rows_of(tmp_path, ",tp", ",8")[0].runs[0].model.vocabulary == 50176


def test_an_open_microbatch_means_any_of_four(tmp_path: Path) -> None:
    assert [run.layout.microbatch for run in rows_of(tmp_path)[0].runs] == [1, 2, 4, 8]


def test_open_chunks_are_those_that_divide_the_blocks_of_a_stage(tmp_path: Path) -> None:
    row = rows_of(tmp_path, ",pp,microbatch,schedule", ",2,1,interleaved")[0]
    assert [run.layout.vp for run in row.runs] == [2, 4]


def test_chunks_without_a_schedule_are_interleaved(tmp_path: Path) -> None:
    assert rows_of(tmp_path, ",pp,chunks", ",2,2")[0].runs[0].schedule == "interleaved"


def test_chunks_are_those_of_vp_or_of_the_layout(tmp_path: Path) -> None:
    for columns, values in ((",pp,vp", ",2,4"), (",pp,pipeline_layout", ",2,Ett|(t|)*5t|L")):
        run = rows_of(tmp_path, columns, values)[0].runs[0]
        assert (run.layout.vp, run.schedule) == (4, "interleaved")
    for columns, values, problem in (
        (",pp,vp,chunks", ",2,4,2", "vp and chunks must agree, got '4' and '2'"),
        (",pp,pipeline_layout", ",4,Et*8|L", "pipeline_layout must have a multiple of pp 4 stages, got 2"),
    ):
        assert rows_of(tmp_path, columns, values)[0].problem == problem


def test_a_row_says_what_runs_forward_again(tmp_path: Path) -> None:
    for text, recompute, blocks in (
        ("full:3", "full", 3),
        ("moe_act+layernorm", "moe_act+layernorm", None),
        ("Selective", "selective", None),
    ):
        run = rows_of(tmp_path, ",recompute", f",{text}")[0].runs[0]
        assert (run.layout.recompute, run.recomputed) == (recompute, blocks)


def test_a_model_by_name_or_by_file_says_its_sizes(tmp_path: Path) -> None:
    spec = Path("config/models/llama-3.1-8b.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(spec.replace("layers: 32", "layers: 4"))
    path = tmp_path / "runs.csv"
    path.write_text("model,seq,gpus,global_batch,tp\nllama-3.1-8b,512,8,8,4\nmine.yaml,512,8,8,4\n")
    runs = [row.runs[0] for row in read_rows(path)[1]]
    assert [(run.layers, run.hidden, run.vocab) for run in runs] == [(32, 4096, 128256), (4, 4096, 128256)]
    assert [run.model.vocabulary for run in runs] == [128512, 128512]


def test_columns_without_a_name_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"\ufeff{HEAD},,\r\n{SIZES},,\r\n", encoding="utf-8", newline="")
    table, rows = read_rows(path)
    assert list(table.columns) == HEAD.split(",")
    assert rows[0].runs[0].model.hidden == 1024


@pytest.mark.parametrize(
    ("columns", "values", "problem"),
    [(",tp,tp", ",1,2", "columns tp appear twice"), ("", ",3", "Expected 7 fields in line 2, saw 8")],
)
def test_values_without_a_column_of_their_own_are_refused(
    tmp_path: Path, columns: str, values: str, problem: str
) -> None:
    """Pandas would call the second column tp.1, and shift all values by one column."""
    with pytest.raises(PhazeError, match=problem):
        rows_of(tmp_path, columns, values)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("recompute", "half", "recompute must be one of none, full, selective, or of core_attn, moe_act, "),
        ("sequence_parallel", "perhaps", "sequence_parallel must be one of true, yes, 1"),
        ("tp", "0", "tp must be a whole number from 1"),
        ("tp", "1.5", "tp must be a whole number from 1"),
        ("zero", "4", "zero must be 0, 1, 2 or 3, got '4'"),
        ("measured_s", "-3", "measured_s must be a number > 0, got '-3'"),
        ("cp_kind", "ring", "cp_kind must be one of all_gather, p2p, a2a, a2a+p2p:k, got ring"),
        ("capacity", "0", "capacity must be a number > 0, got '0'"),
        (
            "load",
            "power_law_0.5",
            "load must be balanced, natural, a factor > 0, power_law_x with 1 < x < 10, or ",
        ),
        ("mtp", "-1", "mtp must be a whole number from 1"),
        ("recompute", "selective:2", "recompute: only full accepts a number of blocks, got 'selective':'2'"),
        ("recompute", "full:0", "recompute: blocks of full must be a whole number from 1"),
        ("pipeline_layout", "Et*8", "layout string: must have E for the embedding"),
        ("model", "gpt-5", "config/models/gpt-5.yaml: there is no model 'gpt-5'"),
        ("model", "gpt2-xl", "hidden must be 1600 or empty with model gpt2-xl, got 1024"),
        ("model", "../other.json", "/"),
        ("measured_s", "soon", "measured_s must be a number > 0, got 'soon'"),
        ("release", "newest", "release must look like 26.04 or 26.04.01, got 'newest'"),
    ],
)
def test_a_mistake_in_a_row_names_column_value_and_what_is_allowed(
    tmp_path: Path, column: str, value: str, problem: str
) -> None:
    row = rows_of(tmp_path, f",{column}", f",{value}")[0]
    assert row.runs == ()
    assert row.problem.startswith(problem)


def test_every_field_of_a_layout_is_a_column() -> None:
    assert set(READ.values()) == {field.name for field in fields(Layout)}
    assert set(COLUMNS) >= set(LAYOUT)


def test_groups_of_ranks_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    run = rows_of(tmp_path, ",replicate", ",3")[0].runs[0]
    with pytest.raises(PhazeError, match=r"replicate must divide dp [*] cp"):
        run.layout.check()


def test_a_release_without_a_stack_is_one_of_megatron_bridge(tmp_path: Path) -> None:
    row = rows_of(tmp_path, ",release", ",26.04.01 NeMo Container")[0]
    assert (row.stack, row.release) == ("megatron-bridge", "26.04.01")
    assert rows_of(tmp_path, ",release,stack", ",26.04,primus")[0].stack == "primus"


def test_a_required_value_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"{HEAD}\n,16,8,512,50000,16,64\n")
    assert read_rows(path)[1][0].problem == "hidden must be given"


def test_a_table_without_required_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("hidden,heads\n1,2\n")
    with pytest.raises(
        PhazeError, match=r"runs\.csv: columns layers, seq, vocab, gpus, global_batch are missing"
    ):
        read_rows(path)


def test_a_file_that_is_no_csv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PhazeError, match="cannot be read as CSV"):
        read_rows(tmp_path / "absent.csv")


def test_an_open_etp_is_that_of_the_runtime(tmp_path: Path) -> None:
    """By default Megatron-Core shards experts by tp."""
    path = tmp_path / "runs.csv"
    columns = "model,seq,gpus,global_batch,tp,etp,sequence_parallel"
    for model, etp, expected in (("mixtral-8x7b", "", 8), ("mixtral-8x7b", "1", 1), ("llama-3.1-8b", "", 1)):
        path.write_text(f"{columns}\n{model},4096,16,64,8,{etp},true\n")
        assert read_rows(path)[1][0].runs[0].layout.etp == expected


def test_a_model_without_a_word_on_attention_keeps_scores_on_the_chip(tmp_path: Path) -> None:
    """Likewise for a stack that names its kernels; a row that states otherwise is priced accordingly."""
    path = tmp_path / "runs.csv"
    named = "llama-3.1-8b,,,,"
    sizes = ",1024,16,8,50000"
    for row, stack, said, expected in (
        (named, "megatron-lm", "", "ok; flash_attention true because a model is named"),
        (sizes, "torchtitan", "", "ok; flash_attention true because the stack torchtitan has it"),
        (sizes, "megatron-lm", "", "ok"),
        (named, "megatron-lm", "true", "ok"),
    ):
        path.write_text(
            "model,hidden,heads,layers,vocab,seq,gpus,global_batch,tp,sequence_parallel,zero,microbatch,stack,"
            f"flash_attention\n{row},2048,8,8,8,true,1,1,{stack},{said}\n"
        )
        table, _ = predict_table(path, load_machine("h100"))
        assert table["status"].tolist() == [expected]
        path.write_text(path.read_text().replace(f"{stack},{said}\n", f"{stack},false\n"))
        in_memory = predict_table(path, load_machine("h100"))[0]["memory_gib"]
        assert (in_memory > table["memory_gib"]).tolist() == [expected != "ok" or said == "true"]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_cells_are_read_as_text_whatever_the_spaces_quotes_and_blank_lines(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f'{mark}model, gpus,,"note, long"\n\n gpt2, 08,dropped,"a ""b"", c"\r\ngpt2,1\n')
    texts = read_texts(path)
    assert texts.columns == ["model", "gpus", "note, long"]
    assert texts.lines == [["gpt2", "08", 'a "b", c'], ["gpt2", "1", ""]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "No columns to parse from file"),
        ("a,b\n1,2,3\n", "Expected 2 fields in line 2, saw 3"),
        ('a,b\n"1,2\n', "unexpected end of data"),
        ("a,a\n1,2\n", "columns a appear twice"),
    ],
)
def test_files_that_are_no_table_are_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(PhazeError, match=f"runs.csv: cannot be read as CSV: {reason}"):
        read_texts(path)
