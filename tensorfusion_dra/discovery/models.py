"""The table of known models with their compute."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.devices.gpu import TflopsSource
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.untyped_json import is_number
from tensorfusion_dra.discovery import gpu_models, model_names, yaml_file
from tensorfusion_dra.discovery.yaml_file import shown

MAX_TFLOPS: Final = 1_000_000
"""More than any card has; a larger figure is an error of units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A card's compute and where the figure comes from.

    Attributes:
        milli_tflops: Dense FP16, in thousandths of a TFLOPS; at least 1.
    """

    milli_tflops: int
    source: TflopsSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One line of a table.

    Attributes:
        model: Short name. If users select the card by it (``A10``, ``RTX4090``), the row applies to
            every card of that short name.
        full_name: Name that NVML reports.
        milli_tflops: Dense FP16, in thousandths of a TFLOPS.
    """

    model: str
    full_name: str
    milli_tflops: int


@dataclass(frozen=True, slots=True)
class ModelTable:
    """The packaged rows, and an administrator's own rows, which take precedence."""

    packaged: tuple[ModelRow, ...]
    own: tuple[ModelRow, ...] = ()

    def lookup(self, product_name: str) -> Rating | None:
        """Return the compute of the card with this NVML name; None if no row applies.

        An own row wins over a packaged one, and a row for the full name wins over one for the short
        name. A mobile card without a row has three quarters of the compute of the desktop card of
        the same name (Tensor Fusion's rule, cmd/nodediscovery).
        """
        found = self._find(product_name)
        if found is None and model_names.is_laptop(product_name):
            desktop = self._find(model_names.desktop_name(product_name))
            if desktop is not None:
                found = Rating(milli_tflops=desktop.milli_tflops * 3 // 4, source=desktop.source)
        return found

    def _find(self, product_name: str) -> Rating | None:
        names = (
            model_names.key(product_name),
            model_names.key(model_names.short_model(product_name)),
        )
        for source, by_name in (
            (TflopsSource.FILE, _by_name(self.own)),
            (TflopsSource.TABLE, _by_name(self.packaged)),
        ):
            for name in names:
                if name in by_name:
                    return Rating(milli_tflops=by_name[name], source=source)
        return None


def load(own: Path | None = None) -> ModelTable:
    """Load the packaged table and the rows of an administrator's file.

    The file has the format of Tensor Fusion's gpu-info.yaml: a list of {model, fullModelName,
    vendor, fp16TFlops}. Rows of other vendors and additional fields are ignored.

    Raises:
        InputError: The file cannot be read or has another format; the text names the entry.
    """
    packaged = tuple(
        ModelRow(model=model, full_name=full_name, milli_tflops=_milli(tflops))
        for model, full_name, tflops in gpu_models.PACKAGED
    )
    return ModelTable(packaged=packaged, own=() if own is None else rows(own))


def rows(file: Path) -> tuple[ModelRow, ...]:
    """Return the rows of NVIDIA cards in a file.

    Raises:
        InputError: The file cannot be read or has another format; the text names the entry.
    """
    entries = yaml_file.content(file)
    if not isinstance(entries, list):
        raise InputError(f"{file}: found {shown(entries)}, expected a list of models")
    found: list[ModelRow] = []
    for number, entry in enumerate(entries, start=1):
        where = f"{file}: entry {number}"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: found {shown(entry)}, expected a model with its fields")
        row, vendor = _row(entry, where), entry.get("vendor", "NVIDIA")
        if not isinstance(vendor, str):
            raise InputError(f"{where}: vendor: found {shown(vendor)}, expected a name")
        if vendor.strip().upper() == "NVIDIA":
            found.append(row)
    _refuse_contradictions(found, file)
    return tuple(found)


def _row(entry: Mapping[object, object], where: str) -> ModelRow:
    names: list[str] = []
    for field in ("model", "fullModelName"):
        name = entry.get(field)
        if not isinstance(name, str) or not model_names.key(name):
            raise InputError(f"{where}: {field}: found {shown(name)}, expected a name")
        names.append(name)
    tflops = entry.get("fp16TFlops")
    # NaN fails the range check too, because every comparison with it is false.
    if not is_number(tflops) or not 0.001 <= tflops <= MAX_TFLOPS:
        raise InputError(
            f"{where} ({shown(names[0])}): fp16TFlops: found {shown(tflops)}, "
            f"expected a number from 0.001 to {MAX_TFLOPS}"
        )
    return ModelRow(model=names[0], full_name=names[1], milli_tflops=_milli(tflops))


def _milli(tflops: float) -> int:
    """Return thousandths of a TFLOPS."""
    # str() returns the digits as written; the binary fraction is not exact.
    return int(Decimal(str(tflops)) * 1000)


def _refuse_contradictions(table: Iterable[ModelRow], file: Path) -> None:
    seen: dict[str, ModelRow] = {}
    for row in table:
        for name in {model_names.key(row.model), model_names.key(row.full_name)}:
            first = seen.setdefault(name, row)
            if first.milli_tflops != row.milli_tflops:
                raise InputError(
                    f"{file}: {shown(name)}: found {first.milli_tflops} and {row.milli_tflops} "
                    f"thousandths of a TFLOPS, expected one figure for one name"
                )


def _by_name(table: Iterable[ModelRow]) -> dict[str, int]:
    return {
        model_names.key(name): row.milli_tflops
        for row in table
        for name in (row.model, row.full_name)
    }
