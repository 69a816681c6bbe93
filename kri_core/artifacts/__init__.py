"""Cartridges and priors on disk: read, write, verify, convert. Nothing here imports torch early."""

from __future__ import annotations

from kri_core.artifacts.calibration_file import (
    calibration_path,
    find_calibration,
    read_calibration,
    write_calibration,
)
from kri_core.artifacts.cartridge_file import (
    read_cartridge,
    read_cartridge_header,
    verify_cartridge,
    write_cartridge,
)
from kri_core.artifacts.contents import check_target
from kri_core.artifacts.convert import convert_cartridge, convert_prior, is_native
from kri_core.artifacts.foreign import read_foreign_cartridge
from kri_core.artifacts.header import CartridgeHeader
from kri_core.artifacts.matching import check_model
from kri_core.artifacts.overlay_file import (
    Overlay,
    is_overlay,
    read_overlay,
    seal_overlay,
    verify_overlay,
    write_overlay,
)
from kri_core.artifacts.prior_file import read_prior, write_prior
from kri_core.artifacts.sealing import block_major, seal

__all__ = [
    "CartridgeHeader",
    "Overlay",
    "block_major",
    "calibration_path",
    "check_model",
    "check_target",
    "convert_cartridge",
    "convert_prior",
    "find_calibration",
    "is_native",
    "is_overlay",
    "read_calibration",
    "read_cartridge",
    "read_cartridge_header",
    "read_foreign_cartridge",
    "read_overlay",
    "read_prior",
    "seal",
    "seal_overlay",
    "verify_cartridge",
    "verify_overlay",
    "write_calibration",
    "write_cartridge",
    "write_overlay",
    "write_prior",
]
