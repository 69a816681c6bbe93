"""Writing the trace of a server: a line per routed request, off by default."""

from __future__ import annotations

import time
from pathlib import Path

from attrs import field, frozen
from vllm.logger import init_logger

from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.orders import Plan
from kri_core.substrate.vllm.traced import TracedRequest, check_writable

logger = init_logger("vllm.kri_core.trace")


@frozen
class Trace:
    """Appends to a file, line by line, so that a killed server leaves whole lines."""

    path: Path = field()

    @path.validator
    def _check(self, _attribute: object, path: Path) -> None:
        check_writable(path)

    def write(self, asked: Asked, plan: Plan) -> None:
        """A disk that fills up later costs lines, not the engine."""
        request = TracedRequest(
            time=time.time(),
            request_id=plan.request_id,
            cartridge=plan.cart_id,
            cartridge_sha256=plan.sha256,
            stack=plan.stack,
            block_size=plan.routing_block_size,
            kept=plan.kept,
            question_token_ids=asked.question(plan.num_tokens),
        )
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(request.to_line())
        except OSError as error:
            logger.warning("request %s is not in the trace: %s", plan.request_id, error)
