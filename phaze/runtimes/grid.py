"""Many layouts at once, as arrays by field, for rules, bounds and memory of all together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.layout import BALANCED, Compute, CpKind, Layout, Load, Offload, Recompute, Zero


@dataclass(frozen=True, eq=False)
class LayoutGrid:
    """Layouts as arrays, all of shape (N,); fields mean what they mean in `Layout`, in mixed precision."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    pp: Ints
    vp: Ints
    dp: Ints
    microbatch: Ints
    zero: Ints
    sequence_parallel: Bools
    schedule: Ints
    """Place in `schedules`."""
    recompute: Ints
    """Place in `recomputes`."""
    cp_kind: Ints
    """Place in `cp_kinds`."""
    schedules: tuple[str, ...]
    recomputes: tuple[Recompute, ...]
    cp_kinds: tuple[CpKind, ...]
    offload: Offload = "none"
    """Of all layouts alike."""
    compute: Compute = "bf16"
    """Of all layouts alike."""
    load: Load = BALANCED
    """Of experts, of all layouts alike."""

    def __len__(self) -> int:
        """Number of layouts, N."""
        return len(self.tp)

    @property
    def stages(self) -> Ints:
        """Virtual stages of the pipeline, pp · vp, (N,)."""
        return self.pp * self.vp

    @property
    def sharers(self) -> Ints:
        """Ranks that hold the same dense weights, dp · cp, (N,)."""
        return self.dp * self.cp

    @property
    def expert_ranks(self) -> Ints:
        """Ranks of a stage, whose experts fold into all of them, tp · cp · dp, (N,)."""
        return self.tp * self.cp * self.dp

    @property
    def edp(self) -> Ints:
        """Ranks that hold the same experts, (N,)."""
        return self.expert_ranks // self.expert_stride

    @property
    def expert_stride(self) -> Ints:
        """Ranks from one that holds some experts to the next with the same ones, (N,); as `Layout.edp`."""
        slices = np.where(self.sequence_parallel | (self.tp == 1) | (self.ep > 1), self.etp, self.tp)
        return slices * self.ep

    def microbatches(self, global_batch: int) -> Ints:
        """Microbatches of a replica in a batch, (N,)."""
        return global_batch // (self.microbatch * self.dp)

    def under(self, *schedules: str) -> Bools:
        """Layouts whose schedule is one of these, (N,)."""
        return np.isin(self.schedule, [i for i, name in enumerate(self.schedules) if name in schedules])

    def take(self, which: Bools | Ints) -> Self:
        """Layouts at places, or where a mask is true."""
        return replace(self, **{name: getattr(self, name)[which] for name in COLUMNS})

    def joined(self, other: Self) -> Self:
        """These layouts, then others with the same words."""
        found: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS
        }
        return replace(self, **found)

    def recomputing(self, chosen: Bools) -> Self:
        """Every layout with each of its chosen recompute options, (N, options), in order."""
        places, recompute = np.nonzero(chosen)
        return replace(self.take(places), recompute=recompute)

    def schedule_of(self, place: int) -> str:
        """Schedule of one layout."""
        return self.schedules[int(self.schedule[place])]

    def layout(self, place: int) -> Layout:
        """One layout; its schedule is apart (`schedule_of`)."""
        return Layout(
            tp=int(self.tp[place]),
            cp=int(self.cp[place]),
            ep=int(self.ep[place]),
            etp=int(self.etp[place]),
            pp=int(self.pp[place]),
            vp=int(self.vp[place]),
            dp=int(self.dp[place]),
            microbatch=int(self.microbatch[place]),
            sequence_parallel=bool(self.sequence_parallel[place]),
            zero=cast(Zero, int(self.zero[place])),
            recompute=self.recomputes[self.recompute[place]],
            cp_kind=self.cp_kinds[self.cp_kind[place]],
            offload=self.offload,
            compute=self.compute,
            load=self.load,
        )

    @classmethod
    def of(
        cls,
        layouts: Sequence[tuple[Layout, str]],
        schedules: tuple[str, ...],
        recomputes: tuple[Recompute, ...],
        cp_kinds: tuple[CpKind, ...],
    ) -> Self:
        """Grid of layouts, each with its schedule, that offload and multiply alike."""
        each = [layout for layout, _ in layouts]
        whole = ("tp", "cp", "ep", "etp", "pp", "vp", "dp", "microbatch", "zero")
        return cls(
            **{name: np.array([getattr(layout, name) for layout in each], np.int64) for name in whole},
            sequence_parallel=np.array([layout.sequence_parallel for layout in each], np.bool_),
            schedule=np.array([schedules.index(name) for _, name in layouts], np.int64),
            recompute=np.array([recomputes.index(layout.recompute) for layout in each], np.int64),
            cp_kind=np.array([cp_kinds.index(layout.cp_kind) for layout in each], np.int64),
            schedules=schedules,
            recomputes=recomputes,
            cp_kinds=cp_kinds,
            offload=each[0].offload,
            compute=each[0].compute,
            load=each[0].load,
        )


WORDS = {"schedule": "schedules", "recompute": "recomputes", "cp_kind": "cp_kinds"}
"""Fields of a grid that are places in another field's words."""
ALIKE = ("offload", "compute", "load")
"""Fields of a grid that all its layouts share."""
COLUMNS = tuple(field.name for field in fields(LayoutGrid) if field.name not in (*WORDS.values(), *ALIKE))
"""Fields of a grid that are arrays."""
