"""Whether a server can answer a run: the same model, and every cartridge and prior of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from attrs import evolve

from kri_core.errors import ConfigError, EngineError
from kri_core.running.crossing import Job, Prepared, Reported
from kri_core.running.planning import PlannedRow
from kri_core.running.server import About, Server

logger = logging.getLogger(__name__)

KINDS = ("stack", "full", "floor", "random")  # a request names a stack and nothing else
MODES = ("raw_logprobs", "processed_logprobs")  # of vLLM's --logprobs-mode; others give logits


def served_rows(rows: Sequence[PlannedRow]) -> list[PlannedRow]:
    """Those a server can answer; the others are named and left out."""
    left_out = [row.name for row in rows if row.kind not in KINDS]
    if left_out:
        logger.warning(
            "not run, as a request names a stack and nothing else: %s", ", ".join(left_out)
        )
    return [row for row in rows if row.kind in KINDS]


def served(job: Job, url: str, said: Reported, prepared: Sequence[Prepared]) -> Reported:
    """What a header says of the server, which must be ready for this run."""
    start = (
        f"kri-core serve {job.model} --cartridge {job.cache / 'cartridges'} "
        f"--prior {job.cache / 'priors'} -- --dtype {job.dtype}"
    )
    try:
        about = Server(url).about()
    except EngineError as error:
        raise EngineError(f"{error}; this run's is {start}") from error
    if about.fingerprint != said.fingerprint:
        raise ConfigError(
            f"{url} serves another model than --model {job.model}: its fingerprint is "
            f"{about.fingerprint[:12]}, not {said.fingerprint[:12]}; give the served one"
        )
    if about.logprobs not in MODES:
        raise ConfigError(
            f"{url} gives {about.logprobs} in place of log-probabilities; start it without "
            "--logprobs-mode"
        )
    if lacking := list(_lacking(about, prepared)):
        raise ConfigError(
            f"{url} lacks {len(lacking)} files of this run, first {lacking[0]}; start it again: "
            f"{start}"
        )
    return evolve(said, substrate=f"vllm {about.vllm}", dtype=about.dtype, machine=about.machine)


def _lacking(about: About, prepared: Sequence[Prepared]) -> Iterator[str]:
    for one in prepared:
        if about.cartridges.get(one.prefix_hash) != one.sha256:
            yield f"cartridge {one.prefix_hash}"
        held = about.priors.get(one.prefix_hash, ())
        yield from (f"prior {name}" for name in one.prior_files if name not in held)
