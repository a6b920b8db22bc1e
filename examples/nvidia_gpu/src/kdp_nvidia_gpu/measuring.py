"""What a GPU measures of itself, as Prometheus has it: in base units, and only what this GPU answers.

A MIG instance has no sensors of its own, so only whole GPUs are measured. Most numbers come from one call of NVML that
takes a list of fields, so that one GPU costs ten calls.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, final

import attrs

import kdp

from .nvml import is_lost, pynvml, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .gpus import Gpu

logger = logging.getLogger(__name__)

_ALL_LINKS: Final = 0xFFFFFFFF
"""The scope that adds up the NVLinks of a GPU."""

_KIB: Final = 1024
_MHZ: Final = 1_000_000
_MILLI: Final = 0.001

_PARTS: Final = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
"""The part of a field's value that counts, by its type."""

_NARROW: Final = {pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT}


def _counter(name: str, text: str, unit: str = "") -> kdp.Measurement:
    return kdp.Measurement(name, unit=unit, help=text, kind="counter")


@attrs.frozen
class Field:
    """A number that NVML answers in its list of fields.

    Attributes:
        number: NVML's, ``NVML_FI_DEV_*``.
        measurement: What it measures.
        factor: What makes its unit the base unit.
        scope: What NVML wants besides.
        is_fast: Whether a counter of 32 bits turns over between two measurements, so that nobody can use it.
    """

    number: int
    measurement: kdp.Measurement
    factor: float = 1
    scope: int = 0
    is_fast: bool = False


FIELDS: Final = (
    Field(
        pynvml.NVML_FI_DEV_MEMORY_TEMP,
        kdp.Measurement("gpu_memory_temperature", unit="celsius", help="Temperature of the GPU's memory."),
    ),
    Field(
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        _counter("gpu_energy", "Energy that the GPU has used since its driver was loaded.", "joules"),
        factor=_MILLI,
    ),
    Field(
        pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
        _counter("gpu_pcie_replays", "Packets on the PCI bus that had to be sent again."),
    ),
    Field(
        pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        _counter("gpu_pcie_transmitted", "What the GPU has sent over the PCI bus.", "bytes"),
        is_fast=True,
    ),
    Field(
        pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        _counter("gpu_pcie_received", "What the GPU has received over the PCI bus.", "bytes"),
        is_fast=True,
    ),
    Field(
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        _counter("gpu_nvlink_transmitted", "What the GPU has sent over all of its NVLinks.", "bytes"),
        factor=_KIB,
        scope=_ALL_LINKS,
    ),
    Field(
        pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        _counter("gpu_nvlink_received", "What the GPU has received over all of its NVLinks.", "bytes"),
        factor=_KIB,
        scope=_ALL_LINKS,
    ),
    Field(
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
        _counter("gpu_ecc_single_bit_volatile_errors", "Bits that ECC has corrected since the driver was loaded."),
    ),
    Field(
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
        _counter(
            "gpu_ecc_double_bit_volatile_errors", "Errors that ECC has not corrected since the driver was loaded."
        ),
    ),
    Field(
        pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL,
        _counter("gpu_ecc_single_bit_aggregate_errors", "Bits that ECC has corrected in the life of the GPU."),
    ),
    Field(
        pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
        _counter("gpu_ecc_double_bit_aggregate_errors", "Errors that ECC has not corrected in the life of the GPU."),
    ),
    Field(
        pynvml.NVML_FI_DEV_RETIRED_SBE,
        _counter("gpu_single_bit_retired_pages", "Pages of memory that are out of use because of single bit errors."),
    ),
    Field(
        pynvml.NVML_FI_DEV_RETIRED_DBE,
        _counter("gpu_double_bit_retired_pages", "Pages of memory that are out of use because of double bit errors."),
    ),
    Field(
        pynvml.NVML_FI_DEV_RETIRED_PENDING,
        kdp.Measurement("gpu_page_retirement_pending", help="1 if pages wait for a reset to be out of use."),
    ),
    Field(
        pynvml.NVML_FI_DEV_REMAPPED_COR,
        _counter("gpu_correctable_remapped_rows", "Rows of memory that were replaced because of correctable errors."),
    ),
    Field(
        pynvml.NVML_FI_DEV_REMAPPED_UNC,
        _counter(
            "gpu_uncorrectable_remapped_rows", "Rows of memory that were replaced because of uncorrectable errors."
        ),
    ),
    Field(
        pynvml.NVML_FI_DEV_REMAPPED_PENDING,
        kdp.Measurement("gpu_row_remap_pending", help="1 if rows of memory wait for a reset to be replaced."),
    ),
    Field(
        pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
        kdp.Measurement("gpu_row_remap_failed", help="1 if a row of memory could not be replaced."),
    ),
)

MEASUREMENTS: Final = (
    # Pages for people show the first ones.
    kdp.Measurement("gpu_utilization", unit="ratio", help="Share of time in which the GPU computed."),
    kdp.Measurement("gpu_memory_used", unit="bytes", help="Memory of the GPU that is in use."),
    kdp.Measurement("gpu_memory_size", unit="bytes", help="Memory of the GPU."),
    kdp.Measurement("gpu_temperature", unit="celsius", help="Temperature of the GPU's chip."),
    kdp.Measurement("gpu_power", unit="watts", help="Power that the GPU uses."),
    kdp.Measurement("gpu_last_xid", help="The last error (XID) that the driver reported of the GPU, 0 if none."),
    kdp.Measurement("gpu_sm_clock", unit="hertz", help="Clock of the GPU's multiprocessors."),
    kdp.Measurement("gpu_memory_clock", unit="hertz", help="Clock of the GPU's memory."),
    kdp.Measurement("gpu_memory_free", unit="bytes", help="Memory of the GPU that is not in use."),
    kdp.Measurement("gpu_memory_reserved", unit="bytes", help="Memory of the GPU that the driver keeps for itself."),
    kdp.Measurement("gpu_memory_copy_utilization", unit="ratio", help="Share of time in which memory was accessed."),
    kdp.Measurement("gpu_encoder_utilization", unit="ratio", help="Share of time in which the video encoder was used."),
    kdp.Measurement("gpu_decoder_utilization", unit="ratio", help="Share of time in which the video decoder was used."),
    *(field.measurement for field in FIELDS),
    kdp.Measurement("gpu_vgpu_licensed", help="1 if a virtual GPU has its license."),
)


@final
class Meter:
    """Measures GPUs. What a GPU does not answer is told one time, at debug."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def measured(self, gpus: Iterable[Gpu], last_xid: Callable[[str], int | None]) -> dict[str, dict[str, float]]:
        """Return what these GPUs measure, by UUID; one that is lost or divided is left out. Blocks for NVML.

        Args:
            gpus: The GPUs.
            last_xid: Returns a GPU's last error by UUID, 0 if it had none; None: its errors are not watched.
        """
        found: dict[str, dict[str, float]] = {}
        for gpu in gpus:
            if gpu.handle is None or gpu.is_mig is not False:
                continue
            try:
                values = self._of(gpu.uuid, gpu.handle)
            except pynvml.NVMLError as error:
                self._tell(gpu.uuid, "anything", reason(error))
                continue
            if (xid := last_xid(gpu.uuid)) is not None:
                values["gpu_last_xid"] = xid
            found[gpu.uuid] = values
        return found

    def _of(self, uuid: str, handle: Any) -> dict[str, float]:
        """Return what one GPU measures.

        Raises:
            pynvml.NVMLError: It is lost, so that no call would have an answer.
        """
        values: dict[str, float] = {}

        def ask(what: str, call: str, *arguments: Any) -> Any:
            try:
                return getattr(pynvml, call)(handle, *arguments)
            except pynvml.NVMLError as error:
                if is_lost(error):
                    raise
                self._tell(uuid, what, reason(error))
            except (
                AttributeError,
                ValueError,
            ) as error:  # of nvidia-ml-py itself: an older one, or bytes that are no text
                self._tell(uuid, what, reason(error))
            return None

        if (rates := ask("utilization", "nvmlDeviceGetUtilizationRates")) is not None:
            values["gpu_utilization"], values["gpu_memory_copy_utilization"] = rates.gpu / 100, rates.memory / 100
        for name in ("Encoder", "Decoder"):
            if (rate := ask(f"use of its {name.lower()}", f"nvmlDeviceGet{name}Utilization")) is not None:
                values[f"gpu_{name.lower()}_utilization"] = rate[0] / 100
        for name, clock in (("gpu_sm_clock", pynvml.NVML_CLOCK_SM), ("gpu_memory_clock", pynvml.NVML_CLOCK_MEM)):
            if (megahertz := ask(name, "nvmlDeviceGetClockInfo", clock)) is not None:
                values[name] = megahertz * _MHZ
        if (
            memory := ask("what it reserves of its memory", "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        ) is not None:
            values["gpu_memory_reserved"] = memory.reserved
        else:  # drivers from before 2022 count as used what they reserve
            memory = ask("use of its memory", "nvmlDeviceGetMemoryInfo")
        if memory is not None:
            values["gpu_memory_used"], values["gpu_memory_free"] = memory.used, memory.free
            values["gpu_memory_size"] = memory.total
        # The successor of this call is not in the drivers of before 2025.
        if (heat := ask("temperature", "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)) is not None:
            values["gpu_temperature"] = heat
        if (milliwatts := ask("power", "nvmlDeviceGetPowerUsage")) is not None:
            values["gpu_power"] = milliwatts * _MILLI
        if (license_ := ask("license", "nvmlDeviceGetGridLicensableFeatures_v4")) is not None:
            values |= self._licensed(uuid, license_)
        asked = [(field.number, field.scope) for field in FIELDS]
        answers = ask("fields", "nvmlDeviceGetFieldValues", asked)
        return values if answers is None else values | self._fields(uuid, answers)

    def _fields(self, uuid: str, answers: Any) -> dict[str, float]:
        values: dict[str, float] = {}
        for field, answer in zip(FIELDS, answers, strict=True):
            name = field.measurement.name
            if answer.nvmlReturn != pynvml.NVML_SUCCESS:
                self._tell(uuid, name, reason(pynvml.NVMLError(answer.nvmlReturn)))
            elif (part := _PARTS.get(answer.valueType)) is None:
                self._tell(uuid, name, f"NVML gives it a type that is not known, {answer.valueType}")
            elif field.is_fast and answer.valueType in _NARROW:
                self._tell(uuid, name, "NVML counts it in 32 bits, which turn over between two measurements")
            else:
                values[name] = getattr(answer.value, part) * field.factor
        return values

    def _licensed(self, uuid: str, answer: Any) -> dict[str, float]:
        features = answer.gridLicensableFeatures[: answer.licensableFeaturesCount]
        if not answer.isGridLicenseSupported or not features:
            self._tell(uuid, "license", "it is no virtual GPU")
            return {}
        states = [feature.featureState for feature in features if feature.featureEnabled]
        return {"gpu_vgpu_licensed": float(pynvml.NVML_GRID_LICENSE_STATE_LICENSED in states)}

    def _tell(self, uuid: str, what: str, why: str) -> None:
        if (uuid, what) not in self._told:
            self._told.add((uuid, what))
            logger.debug("%s: NVML does not report %s: %s", uuid, what, why)
