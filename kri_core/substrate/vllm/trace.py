"""A JSON line per routed request, which `kri-core route --replay` can run by another stack."""

from __future__ import annotations

import json
import time
from pathlib import Path

from attrs import frozen

from kri_core.substrate.vllm.orders import Plan
from kri_core.substrate.vllm.planning import Asked

SCHEMA_VERSION = 1


@frozen
class Trace:
    """Appends to a file, line by line, so that a killed server leaves whole lines."""

    path: Path

    def write(self, asked: Asked, plan: Plan) -> None:
        """The question as token ids, and what was decided; the document is the cartridge's."""
        line = {
            "schema_version": SCHEMA_VERSION,
            "time": time.time(),
            "request_id": plan.request_id,
            "cartridge": plan.cart_id,
            "cartridge_sha256": plan.sha256,
            "stack": plan.stack,
            "block_size": plan.routing_block_size,
            "kept": list(plan.kept),
            "question_token_ids": list(asked.prompt[plan.num_tokens :]),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
