"""Nouns and examples of each reference page of the configuration."""

from typing import NamedTuple

from phaze.spec import topology
from phaze.spec.architecture import Architecture, Technology
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.map_study import Maps
from phaze.spec.mapping import StoredMapping
from phaze.spec.measured import PublishedRuns
from phaze.spec.model import Model
from phaze.spec.network import Matrix
from phaze.spec.noun import Noun
from phaze.spec.operators import StoredOperators
from phaze.spec.planning import PlanStudy
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.stages import StoredStages
from phaze.spec.study import Study
from phaze.spec.system import Cluster, Device, DeviceFigures, Stack, System
from phaze.spec.tiled import TiledDevice, TiledSystem
from phaze.spec.tiled_study import TiledStudy
from phaze.spec.torch_module import TorchModule
from phaze.spec.traced import Traced
from phaze.spec.training_plan import TrainingPlan
from phaze.spec.vision import ResNet, SemanticFpn, Swin


class Entry(NamedTuple):
    """Noun on a page, described together with its nested nouns."""

    title: str
    noun: type[Noun]
    files: str
    """Files that hold the noun, as Markdown."""
    example: str
    """File in config, text of a file, or command (`phaze …`) that writes a file."""
    key: str = ""
    """Top-level key that holds the noun; default: the noun is the whole file."""


class ReferencePage(NamedTuple):
    """Reference page: title and entries."""

    title: str
    entries: tuple[Entry, ...]


_STUDY = "`config.yaml`, `studies/*.yaml`"

PAGES: dict[str, ReferencePage] = {
    "study": ReferencePage("The study", (Entry("A study", Study, _STUDY, "studies/quick.yaml"),)),
    "study-layouts": ReferencePage(
        "Training plans in a study",
        (Entry("`layouts`", LayoutStudy, _STUDY, "studies/llama-3.1.yaml", "layouts"),),
    ),
    "study-plans": ReferencePage(
        "Piper's plans in a study", (Entry("`plans`", PlanStudy, _STUDY, "studies/piper.yaml", "plans"),)
    ),
    "study-tiled": ReferencePage(
        "Tiled accelerators in a study", (Entry("`tiled`", TiledStudy, _STUDY, "studies/palm.yaml", "tiled"),)
    ),
    "study-maps": ReferencePage(
        "Partitions and mappings in a study",
        (Entry("`maps`", Maps, _STUDY, "studies/parmesan.yaml", "maps"),),
    ),
    "models": ReferencePage(
        "Models",
        (
            Entry("A transformer", Model, "`models/*.yaml`", "models/llama-3.1-8b.yaml"),
            Entry("A residual network", ResNet, "`models/*.yaml`", "models/resnet-50.yaml"),
            Entry("A segmentation network", SemanticFpn, "`models/*.yaml`", "models/semantic-fpn.yaml"),
            Entry("A Swin transformer", Swin, "`models/*.yaml`", "models/swin-l.yaml"),
            Entry("A PyTorch module to trace", TorchModule, "`torch/*.yaml`", "torch/resnet-50.yaml"),
            Entry(
                "A traced model",
                Traced,
                "JSON",
                "phaze trace config/torch/gpt2.yaml --run-code --layers -o traced.json",
            ),
        ),
    ),
    "architectures": ReferencePage(
        "Architectures",
        (
            Entry("An architecture", Architecture, "`architectures/*.yaml`", "architectures/tpu-v4.yaml"),
            Entry("A technology", Technology, "`technologies/*.yaml`", "technologies/22nm.yaml"),
        ),
    ),
    "systems": ReferencePage(
        "Systems",
        (
            Entry("A system of devices on levels", Cluster, "`systems/*.yaml`", "templates/system.yaml"),
            Entry("A system with a flat network", System, "`systems/*.yaml`", "systems/paper.yaml"),
            Entry(
                "A system given by a matrix of bandwidths",
                Matrix,
                "`systems/*.yaml`",
                "bandwidths_bytes_per_s: [[0, 25.0e+9], [25.0e+9, 0]]  # two devices\nlatency_s: 5.0e-6",
            ),
            Entry("A system of tiles", TiledSystem, "`systems/*.yaml`", "systems/wafer.yaml"),
            Entry("Measured collectives of NCCL", NcclSpeeds, "`networks/*.yaml`", "networks/nvlink-4.yaml"),
        ),
    ),
    "devices": ReferencePage(
        "Devices",
        (
            Entry(
                "A device of three figures",
                DeviceFigures,
                "`devices/*.yaml`",
                "templates/device.yaml",
            ),
            Entry("A device", Device, "`devices/*.yaml`", "devices/v100-32gb.yaml"),
            Entry("A chip of tiles", TiledDevice, "`devices/*.yaml`", "devices/wafer-tile.yaml"),
        ),
    ),
    "stacks": ReferencePage(
        "Software stacks", (Entry("A software stack", Stack, "`stacks/*.yaml`", "stacks/megatron-core.yaml"),)
    ),
    "topologies": ReferencePage(
        "Topologies",
        (
            Entry(
                "A topology with levels",
                topology.LevelTopology,
                "`topologies/*.yaml`",
                "topologies/two-level.yaml",
            ),
            Entry(
                "A topology of nodes with links of their own",
                topology.Nodes,
                "`topologies/*.yaml`",
                "topologies/dgx-1.yaml",
            ),
            Entry(
                "A mesh or a torus",
                topology.MeshOrTorus,
                "`topologies/*.yaml`",
                "topologies/torus-2d.yaml",
            ),
            Entry(
                "Random nodes",
                topology.RandomBlocks,
                "`topologies/*.yaml`",
                "topologies/random-blk-1.yaml",
            ),
            Entry(
                "Random pairs",
                topology.UniformDist,
                "`topologies/*.yaml`",
                "topologies/uniform-dist.yaml",
            ),
            Entry(
                "A topology from a file",
                topology.MatrixFile,
                "`topologies/*.yaml`",
                "kind: file\npath: measured.csv  # next to this file\nunit_bytes_per_s: 1.0e+9",
            ),
        ),
    ),
    "measured": ReferencePage(
        "Measured runs", (Entry("Measured runs", PublishedRuns, "`measured.yaml`", "measured.yaml"),)
    ),
    "partitions": ReferencePage(
        "Operators, stages and mappings",
        (
            Entry(
                "A graph of operators",
                StoredOperators,
                "JSON",
                "phaze partition bert-large --stages 8 --graph-out graph.json",
            ),
            Entry("Stages", StoredStages, "JSON", "phaze partition bert-large --stages 8 -o stages.json"),
            Entry(
                "A mapping",
                StoredMapping,
                "JSON",
                "phaze map stages.json --topology two-level -o map.json",
            ),
        ),
    ),
    "training-plan": ReferencePage(
        "Training plans",
        (
            Entry(
                "A training plan",
                TrainingPlan,
                "JSON",
                "phaze plan llama-3.1-8b --gpus 64xH100 -o PLAN.json",
            ),
        ),
    ),
}
