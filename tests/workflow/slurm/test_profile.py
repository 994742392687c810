"""Declared resources of rules match measurements, and the profile groups all jobs of a cluster."""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import pandas as pd
import pytest
import yaml

from tests.workflow.folders import ROOT, Folder
from tests.workflow.slurm.measured import declared, measure

MEASURED = pd.concat([pd.read_csv(path) for path in sorted(Path(__file__).parent.glob("*-study.csv"))])
"""Measured studies on a loaded machine with four cores, by `tests.workflow.slurm.measured`."""


def test_rules_declare_what_studies_needed() -> None:
    """Memory and time leave room for larger studies, but still fit common nodes."""
    rules = {one.rule: one for one in declared()}
    known = MEASURED[MEASURED["rule"].isin(rules)].groupby("rule", as_index=False).max()
    assert len(known) >= 15
    for row in known.itertuples():
        rule = rules[row.rule]
        assert 1.3 * row.memory_mb <= rule.mem_mb <= 5 * row.memory_mb, row.rule
        assert 3 * row.seconds <= 60 * rule.runtime, row.rule


@pytest.mark.workflow
def test_a_small_study_stays_within_what_is_declared(finished: Folder) -> None:
    found = measure(finished.path / "results")
    assert len(found) >= 15
    assert (found["memory_mb"] <= found["mem_mb"]).all(), found
    assert (found["seconds"] <= 60 * found["runtime_minutes"]).all(), found


def profile_of(system: str) -> dict[str, object]:
    """Return the content of a profile."""
    return yaml.safe_load((ROOT / f"config/profiles/{system}/config.yaml").read_text())


@pytest.mark.parametrize("system", ["pbs", "lsf"])
def test_profiles_differ_in_how_they_submit_only(system: str) -> None:
    slurm, other = profile_of("slurm"), profile_of(system)
    own = {key for key in slurm.keys() | other.keys() if slurm.get(key) != other.get(key)}
    asking = {"slurm-status-command", "seconds-between-status-checks", "__use_yte__", "__definitions__"}
    assert own == {
        "executor",
        *asking,
        *(f"cluster-generic-{verb}-cmd" for verb in ("submit", "status", "cancel")),
    }


def test_the_profile_batches_the_jobs_of_points_and_models() -> None:
    """A rule outside the groups has a cluster job for each of its jobs."""
    profile = profile_of("slurm")
    grouped = dict(line.split("=") for line in profile["groups"])
    batches = dict(line.split("=") for line in profile["group-components"])
    snakefile = (ROOT / "Snakefile").read_text()
    local = set(re.findall(r"^    (\w+),$", snakefile.partition("localrules:")[2].partition("\n\n")[0], re.M))
    rules = {one.rule for one in declared()}
    assert rules >= grouped.keys() | local - {"all"}
    assert not local & grouped.keys()
    assert grouped.keys() >= {"extract", "estimate", "screen", "schedule", "place"}
    assert batches.keys() == set(grouped.values())


@pytest.mark.workflow
def test_no_group_waits_for_a_rule_that_waits_for_it(finished: Folder) -> None:
    """A cluster job of a group would depend on itself."""
    graph = finished.snakemake("--rulegraph").output
    names = dict(re.findall(r'^\s*(\d+)\[label = "(\w+)', graph, re.M))
    reads = nx.DiGraph([(names[a], names[b]) for a, b in re.findall(r"^\s*(\d+) -> (\d+)$", graph, re.M)])
    grouped = dict(line.split("=") for line in profile_of("slurm")["groups"])
    assert {"certify", "certify_common", "audit"} <= set(reads)
    for group in set(grouped.values()):
        members = {rule for rule in reads if grouped.get(rule) == group}
        later = set[str]().union(*(nx.descendants(reads, rule) for rule in members)) - members
        assert not {rule for rule in later if nx.descendants(reads, rule) & members}, group
