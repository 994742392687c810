"""Programs for torch.distributed.pipelining, written for mapped stages of a profiled module."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.spec.mapping import StoredMapping
from phaze.spec.stages import StoredStages

BEGIN, END = "# begin of the plan\n", "# end of the plan\n"
"""Lines between which the program has its constants."""


def pipeline_program(stages: StoredStages, mapping: StoredMapping, stages_file: Path, map_file: Path) -> str:
    """Text of a program that trains the stages on the devices of the mapping, started with torchrun.

    Raises PhazeError if the stages have no profiled module, or if the mapping is that of other stages.
    """
    profiled, settings = stages.profiled, stages.settings
    if profiled is None or settings is None or not all(stage.operators for stage in stages.stages):
        raise PhazeError(
            f"{stages_file}: profiled: is missing: only operators of a PyTorch module can be run",
            "write the graph with phaze profile FILE.py:NAME, and the stages with phaze partition",
        )
    if stages.recompute:
        raise PhazeError(
            f"{stages_file}: recompute: must be false: the program stores all activations",
            "cut the operators with phaze partition --no-recompute",
        )
    shape = (len(mapping.mapping), len(mapping.mapping[0]))
    if shape != (len(stages.stages), stages.replicas) or {len(row) for row in mapping.mapping} != {shape[1]}:
        raise PhazeError(
            f"{map_file}: mapping: must have {len(stages.stages)} stages of {stages.replicas} replicas, as "
            f"{stages_file} has, got {shape[0]} of {shape[1]}",
            f"map these stages: phaze map {stages_file} --topology FILE -o {map_file}",
        )
    program = files("phaze.runtimes").joinpath("pipeline_program.py").read_text(encoding="utf-8")
    before, _, constants_and_code = program.partition(BEGIN)
    constants = {
        "MODULE": profiled.module,
        "MICROBATCH": settings.microbatch,
        "MICROBATCHES": stages.microbatches,
        "INPUTS": tuple((tensor.kind, tensor.shape) for tensor in profiled.inputs),
        "STAGES": tuple(stage.operators for stage in stages.stages),
        "MAP": mapping.mapping,
    }
    lines = "".join(f"{name} = {_literal(content)}\n" for name, content in constants.items())
    return before + BEGIN + lines + END + constants_and_code.partition(END)[2]


def _literal(content: object) -> str:
    """Python literal, with each stage of a tuple on lines of its own."""
    if not isinstance(content, tuple):
        return repr(content)
    return "(\n" + "".join(f"    {row!r},\n" for row in content) + ")"
