"""What every page needs: the loaded results, the figures that may still be drawn, and where other pages are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from moelab.report.blocks import Banner, Figure
from moelab.report.figures import canvas
from moelab.report.figures.canvas import Drawn, Files
from moelab.report.load import Loaded
from moelab.report.pages.banners import banners
from moelab.report.summary import Group, MachineKey, groups
from moelab.report.text import slug


@dataclass(slots=True)
class Context:
    """`budget`: how many more figures are drawn; past it a figure is its data alone (200 machines would take hours)."""

    loaded: Loaded
    folder: Path
    budget: int
    groups: list[Group] = field(default_factory=list)
    banners: list[Banner] = field(default_factory=list)
    left_out: int = 0
    _files: dict[str, Files] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = groups(self.loaded.cells)
        self.banners = banners(self.loaded)

    @property
    def alarms(self) -> list[Banner]:
        """What stands on every page, not on the first alone."""
        return [banner for banner in self.banners if banner.level == "danger"]

    def figures(self, candidates: Iterable[Drawn | None]) -> list[Figure]:
        """Draw what can be drawn; nothing for None."""
        return [self._figure(drawn) for drawn in candidates if drawn is not None]

    def data(self, name: str, columns: Sequence[str], rows: canvas.Rows) -> str:
        """Write the data of a table; the name again, for Table."""
        canvas.write_csv(canvas.data_path(self.folder, name), columns, rows)
        return name

    def _figure(self, drawn: Drawn) -> Figure:
        if drawn.name in self._files:
            return Figure(drawn, self._files[drawn.name])
        if self.budget <= 0:
            self.left_out += 1
            canvas.write_csv(canvas.data_path(self.folder, drawn.name), drawn.columns, drawn.rows)
            return Figure(drawn, None)
        self.budget -= 1
        self._files[drawn.name] = canvas.save(drawn, self.folder)
        return Figure(drawn, self._files[drawn.name])


def model_page(workload: str) -> str:
    return f"model-{slug(workload)}"


def machine_page(key: MachineKey, name: str) -> str:
    return f"machine-{slug(name)[:40].strip('-')}-{slug('|'.join(map(str, key)))[-6:]}"


def group_name(group: Group, *parts: str) -> str:
    """The file name of a figure of a group: machine, setting, and what else tells it apart."""
    return slug("-".join((*parts, machine_page(group.key, group.machine.name), group.setting.label)))
