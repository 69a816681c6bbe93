"""Whether a server can answer a run: the same model, and every cartridge and prior of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from attrs import evolve

from kri_core.errors import ConfigError, EngineError
from kri_core.running.crossing import Job, Prepared, Reported
from kri_core.running.planning import PlannedRow
from kri_core.running.provenance import plugin_versions
from kri_core.running.server import About, Server
from kri_core.stack import Stack
from kri_core.versions import core_version

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


def served(
    job: Job, url: str, said: Reported, prepared: Sequence[Prepared], stacks: Sequence[Stack]
) -> Reported:
    """What a header says of the server, which must be ready for this run."""
    start = (
        f"kri-core serve {job.model} --cartridge {job.cache / 'cartridges'} "
        f"--prior {job.cache / 'priors'} -- --dtype {job.dtype}"
    )
    try:
        about = Server(url).about()
    except EngineError as error:
        raise EngineError(f"{error}; this run's is {start}") from error
    _check_code(url, about, stacks)
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


def _check_code(url: str, about: About, stacks: Sequence[Stack]) -> None:
    """A header names the code of this side, so the server must run the same."""
    here = core_version()
    if about.kri_core != here:
        raise ConfigError(
            f"{url} runs kri-core {about.kri_core} and this run {here}; install the same in both "
            "and start the server again"
        )
    wanted = {name for stack in stacks for name in plugin_versions(stack)}
    if other := sorted(wanted.difference(about.plugins)):
        raise ConfigError(
            f"{url} has not the plugin {other[0]} of this run; install the same in both and "
            "start the server again"
        )


def _lacking(about: About, prepared: Sequence[Prepared]) -> Iterator[str]:
    for one in prepared:
        if about.cartridges.get(one.prefix_hash) != one.sha256:
            yield f"cartridge {one.prefix_hash}"
        held = about.priors.get(one.prefix_hash, ())
        yield from (f"prior {name}" for name in one.prior_files if name not in held)
