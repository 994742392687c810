"""Generation held out: B200, GB200 and MI355X by public figures, what software reaches from A100 and H100.

`python -m tests.held_out` prints the errors on measured dense training and on measured products.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pandas as pd
import yaml

from phaze.plan.machines import machine_of
from phaze.plan.plan import Machine
from phaze.spec.architecture import Architecture, load_technology
from phaze.spec.config import load_architecture
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.measured import HeldOutErrors
from phaze.spec.system import Device
from phaze.spec.systems import load_cluster, load_device, load_stack, sized
from phaze.spec.training_plan import StoredMachine
from phaze.validate.constants import Site
from phaze.validate.parts.products import LARGE, ProductsPart
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.table import measured_of, predict_rows

SOURCES = ("simumax-b200-dense", "dgxc-nemo", "megatron-bridge", "megatron-bridge-26.04")
NEW = ("b200", "gb200")
"""Devices of the generation that is held out."""
EARLIER, BEFORE = "h100-80gb", "a100-80gb"
"""Devices whose constants are known: the latest, and the one before."""
PUBLIC = {*Architecture.model_fields, "host_bandwidth_bytes_per_s", "known_as", "stack"}
"""Keys of a device file that data sheets print."""
WATTS = {"a100-80gb": 400.0, "h100-80gb": 700.0, "b200": 1000.0, "gb200": 1200.0}
"""Power limits of the data sheets: A100 SXM, H100 SXM, DGX B200 and GB200 NVL72, per device."""
NODES = {"a100-80gb": "7nm", "h100-80gb": "5nm", "b200": "5nm", "gb200": "5nm"}
"""Technology with the energy of a multiply-accumulate: TSMC N7, and 4N and 4NP, which derive from N5."""
ON_NEW_NETWORK = "nvlink-4"
"""Collectives of H100, as shares of the link's bandwidth."""


def load_of_power(name: str) -> float:
    """Power of the arrays at their peak over the power limit, up to a factor that all devices share."""
    return load_device(name).peak_flops_per_s * load_technology(NODES[name]).energy.mac_j / WATTS[name]


def sustained_clock(name: str) -> float:
    """Share of the clock that a power limit allows, by the power law through A100 and H100."""
    latest, before = load_device(EARLIER).sustained_clock, load_device(BEFORE).sustained_clock
    exponent = log(latest / before) / log(load_of_power(EARLIER) / load_of_power(BEFORE))
    return float(min(1.0, latest * (load_of_power(name) / load_of_power(EARLIER)) ** exponent))


def as_held_out(name: str, earlier: str = EARLIER) -> dict[str, object]:
    """Device file of public figures, with all that software reaches from an earlier device."""
    public, software = (read_mapping(FOLDER / "devices" / f"{device}.yaml") for device in (name, earlier))
    fields = {key: figure for key, figure in public.items() if key in PUBLIC}
    fields |= {key: figure for key, figure in software.items() if key not in PUBLIC and key != "boost"}
    if name in WATTS:
        fields["sustained_clock"] = sustained_clock(name)
    products = cast(dict[str, dict[str, object]], fields["products"])
    # The data sheets print the formats that H100 lacks: MXFP8 at the rate of FP8, NVFP4 at twice that.
    new = {"mxfp8": products["fp8"], "nvfp4": {**products["fp8"], "times": 4}}
    return {**fields, "products": {**new, **products}}


@contextmanager
def held_out_folder() -> Iterator[Path]:
    """Yield a configuration folder with the devices held out, and their network at H100's shares."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for path in FOLDER.iterdir():
            if path.name not in ("devices", "systems"):
                (folder / path.name).symlink_to(path.resolve())
        for name in ("devices", "systems"):
            (folder / name).mkdir()
            for path in (FOLDER / name).iterdir():
                (folder / name / path.name).symlink_to(path.resolve())
        for name in NEW:
            system = read_mapping(FOLDER / "systems" / f"{name}.yaml")
            cast(list[dict[str, object]], system["levels"])[0]["nccl"] = ON_NEW_NETWORK
            for noun, fields in (("devices", as_held_out(name)), ("systems", system)):
                file = folder / noun / f"{name}.yaml"
                file.unlink()
                file.write_text(yaml.safe_dump(fields), encoding="utf-8")
        yield folder


def dense_rows(source: str) -> list[RunRow]:
    """Measured dense runs of a source on the devices held out."""
    _, rows = read_rows(FOLDER / "measured" / f"{source}.csv")
    return [row for row in rows if row.system in NEW and not row.has_experts]


def training_errors() -> pd.DataFrame:
    """Relative errors of step times of all dense measured runs on the devices held out, a row each."""
    frames = []
    with held_out_folder() as folder:
        for source in SOURCES:
            rows = dense_rows(source)
            predicted = predict_rows(rows, None, folder)
            errors = predicted["time_s"].to_numpy(float) / measured_of(rows, "measured_s") - 1
            columns = {"source": source, "device": [row.system for row in rows], "error": errors}
            frames.append(pd.DataFrame(columns).assign(precision=predicted["precision"].to_numpy()))
    return pd.concat(frames, ignore_index=True)


def scheduled_errors() -> pd.DataFrame:
    """Relative errors in bf16 of the same devices as chips of architectures, under a static schedule."""
    rows = [row for name in SOURCES for row in dense_rows(name) if row.runs[0].layout.compute == "bf16"]
    errors = []
    for row in rows:
        machine = _scheduled(row.system, row.runs[0].layout.devices)
        predicted = predict_rows([replace(row, system="", stack="")], machine)
        errors.append(predicted["time_s"].item() / measured_of([row], "measured_s").item() - 1)
    return pd.DataFrame({"device": [row.system for row in rows], "precision": "bf16", "error": errors})


def _scheduled(name: str, devices: int) -> Machine:
    """Machine of a system whose devices run a static schedule."""
    cluster, device = load_cluster(name)
    stack = load_stack("chip")
    stored = StoredMachine(cluster=cluster, device=device, stack=stack)
    chips = stored.on_architecture(load_architecture(device.name), stack)
    return machine_of(sized(chips.cluster, devices, name), chips.device, stack)


def product_errors(name: str, earlier: str = EARLIER) -> pd.DataFrame:
    """Relative errors of products of at least 5 GFLOP, with the constants of an earlier device."""
    table = "amd-products" if name.startswith("mi") else "products"
    # Kernels in short loops run at the full clock.
    device = Device.parse({"name": name, **as_held_out(name, earlier), "sustained_clock": 1.0}, name)
    rows = ProductsPart().completed(pd.read_csv(FOLDER / "measured" / "kernels" / f"{table}.csv"))
    rows = rows[rows["device"].isin([name.upper(), *load_device(name).known_as])]
    rows = rows[2.0 * rows["m"] * rows["n"] * rows["k"] >= LARGE]
    site = replace(Site.load(name, None), device=device)
    errors = ProductsPart().predicted_s(rows, site) / (rows["latency_ms"].to_numpy() * 1e-3) - 1
    columns = {"device": f"{name} as {earlier}", "precision": rows["precision"], "error": errors}
    return pd.DataFrame(columns).reset_index(drop=True)


def clean_product_errors() -> pd.DataFrame:
    """Errors of MI355X's products in the format whose kernels are measured on MI300X as well."""
    errors = product_errors("mi355x", "mi300x")
    return errors[errors["precision"] == "fp8-block"]


def summary(errors: pd.DataFrame) -> HeldOutErrors:
    """Errors as `config/measured.yaml` has them."""
    sizes = errors["error"].abs()
    figures = {"mean": sizes.mean(), "most": sizes.max(), "bias": errors["error"].mean()}
    return HeldOutErrors(runs=len(errors), **{name: round(figure, 3) for name, figure in figures.items()})


def main() -> None:
    """Print the power-limited clocks, and the errors by group."""
    for name in NEW:
        sys.stdout.write(f"{name}: sustained clock {sustained_clock(name):.3f}\n")
    pairs = (("mi355x", "mi300x"), ("mi355x", EARLIER), ("b200", EARLIER), ("gb200", EARLIER))
    products = pd.concat([product_errors(*pair) for pair in pairs])
    tables = {"training": training_errors(), "scheduled": scheduled_errors(), "products": products}
    for kind, table in tables.items():
        groups: dict[str, pd.DataFrame] = {} if kind == "products" else {"all": table}
        groups |= {" ".join(map(str, key)): rows for key, rows in table.groupby(["device", "precision"])}
        for group, rows in groups.items():
            errors = summary(rows)
            sys.stdout.write(
                f"{kind:9} {group:26} {errors.runs:4} mean {errors.mean:6.1%} most {errors.most:6.1%} "
                f"bias {errors.bias:+6.1%}\n"
            )


if __name__ == "__main__":
    main()
