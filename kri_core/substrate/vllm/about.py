"""GET /kri: what a server says of itself, so that a client can tell what its answers are of."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping
from typing import Any

import torch
import vllm
from attrs import define, field
from vllm.platforms import current_platform

from kri_core.artifacts import is_native, read_cartridge_header
from kri_core.errors import KriError
from kri_core.substrate.vllm.asgi import Inside, Response, json_response
from kri_core.substrate.vllm.model_identity import served_identity
from kri_core.substrate.vllm.plugin import CONNECTOR
from kri_core.substrate.vllm.settings import CartridgeEntry, Settings
from kri_core.versions import core_version, installed_versions

PATH = "/kri"


def settings_of(config: Any) -> Settings | None:  # noqa: ANN401
    """None of a server that does not route."""
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector != CONNECTOR:
        return None
    return Settings.parse(transfer.kv_connector_extra_config)


@define(eq=False)
class About:
    """Answers the route."""

    _fingerprint: str | None = field(default=None, init=False)

    async def answer(self, app: Inside, config: Any) -> Response:  # noqa: ANN401
        """For those to whom the server lists its models; a server that does not route has none."""
        settings = settings_of(config)
        if settings is None:
            return await app.get(PATH)
        listed = await app.get("/v1/models")
        if listed.status != 200:
            return listed
        try:
            said = await asyncio.to_thread(self._said, settings, config)
        except KriError as error:
            return json_response(503, {"error": {"message": str(error)}}, listed.headers)
        return json_response(200, said, listed.headers)

    def _said(self, settings: Settings, config: Any) -> Mapping[str, object]:  # noqa: ANN401
        model = config.model_config
        if self._fingerprint is None:  # a look at the whole checkpoint
            self._fingerprint = served_identity(model, config.load_config).fingerprint
        return {
            "kri_core": core_version(),
            "plugins": installed_versions(),
            "vllm": vllm.__version__,
            "fingerprint": self._fingerprint,
            "dtype": str(model.dtype).removeprefix("torch."),
            "logprobs": str(model.logprobs_mode),
            "machine": f"{_place()}, torch {torch.__version__}",
            "cartridges": {entry.cart_id: _sha256(entry) for entry in settings.cartridges},
            "priors": {
                entry.cart_id: [path.stem for path in entry.priors] for entry in settings.cartridges
            },
        }


def _sha256(entry: CartridgeEntry) -> str | None:
    """Of its file as it is now; a foreign one names none."""
    return read_cartridge_header(entry.path).sha256 if is_native(entry.path) else None


def _place() -> str:
    return platform.machine() if current_platform.is_cpu() else current_platform.get_device_name()
