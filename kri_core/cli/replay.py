"""`kri-core route --replay`: what another stack would have kept for the requests of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import asdict, frozen

from kri_core.cli.output import print_json, print_table
from kri_core.errors import ArtifactError
from kri_core.types import Query

if TYPE_CHECKING:
    from kri_core.prior import Prior
    from kri_core.probe import Probe
    from kri_core.routing import Router
    from kri_core.types import Cartridge


@frozen
class Replayed:
    """One request, as it was served and as the other stack routes it."""

    request_id: str
    question_token_ids: tuple[int, ...]
    served_stack: str
    served: tuple[int, ...]
    stack: str
    kept: tuple[int, ...]
    shared: tuple[int, ...]  # kept by both
    overlap: float  # shared, as a fraction of what either keeps


def replay(
    trace: Path, router: Router, cartridge: Cartridge, prior: Prior | None, probe: Probe | None
) -> list[Replayed]:
    """The requests of a trace that were served from this cartridge."""
    found = list(_replayed(trace, router, cartridge, prior, probe))
    if not found:
        raise ArtifactError(
            f"{trace} has no request of cartridge {cartridge.cart_id!r} as it is now; give the "
            "cartridge that was served"
        )
    return found


def _replayed(
    trace: Path, router: Router, cartridge: Cartridge, prior: Prior | None, probe: Probe | None
) -> Iterator[Replayed]:
    from kri_core.substrate.vllm.reblocking import reblocked_cartridge, reblocked_prior
    from kri_core.substrate.vllm.traced import read_trace

    for request in read_trace(trace):
        if request.cartridge_sha256 != cartridge.sha256:
            continue
        if not request.block_size or request.block_size % cartridge.layout.block_size:
            raise ArtifactError(
                f"{trace} has blocks of {request.block_size} tokens, which are not made of the "
                f"cartridge's of {cartridge.layout.block_size}; trace again"
            )
        seen = reblocked_cartridge(cartridge, request.block_size)
        its_prior = prior and reblocked_prior(prior, cartridge, request.block_size)
        manifest = router.route(seen, Query(request.question_token_ids), its_prior, probe)
        shared = sorted(set(request.kept) & set(manifest.kept))
        either = set(request.kept) | set(manifest.kept)
        yield Replayed(
            request.request_id,
            request.question_token_ids,
            request.stack,
            request.kept,
            manifest.stack,
            manifest.kept,
            tuple(shared),
            len(shared) / len(either) if either else 1.0,
        )


def print_replay(
    found: Sequence[Replayed], decode: Callable[[Sequence[int]], str] | None, as_json: bool
) -> None:
    """A line for each request, and the mean overlap."""
    mean = sum(one.overlap for one in found) / len(found)
    if as_json:
        print_json({"requests": [asdict(one) for one in found], "mean_overlap": mean})
        return
    rows = [
        (
            f"{_blocks(one.served)} by {one.served_stack}",
            f"{_blocks(one.kept)} by {one.stack}",
            f"{one.overlap:.0%}",
            repr(decode(one.question_token_ids)) if decode else one.request_id,
        )
        for one in found
    ]
    print_table(("served", "replayed", "overlap", "question"), rows)
    click.echo(f"\n{len(found)} requests, mean overlap {mean:.1%}")


def _blocks(kept: Sequence[int]) -> str:
    return " ".join(map(str, kept)) or "none"
