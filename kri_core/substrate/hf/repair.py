"""Repair: the KV of some kept tokens computed afresh, after loading and before the question.

What is fresh is named by the reference (ALGORITHMS 9.4). `routed`: the kept tokens alone, at their
own positions. `query_first`: the same after the question, which every kept token sees. Both compute
all n kept tokens up to the check layer and then the planned ones over the blended KV: about
(check_layer + 1) / layers · n + ratio · n token-forwards. `full`: a prefill of the whole document.
Several requests over one cartridge are repaired in one forward, or share that prefill.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import torch
from attrs import evolve, frozen
from torch import Tensor

from kri_core.errors import ConfigError
from kri_core.repairing import RepairParams, RepairReport, check_references, repair_params
from kri_core.routing import Router
from kri_core.substrate.hf.build import layers_of, prefill
from kri_core.substrate.hf.cutting import only_rows_in_force
from kri_core.substrate.hf.generate import load_prefix
from kri_core.substrate.hf.interface import attending
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.packed import PackedAttention
from kri_core.substrate.hf.prefix import Prefix
from kri_core.substrate.hf.refreshing import BlendedAttention, Plan, Refresh, tokens_at
from kri_core.types import Cartridge, Manifest

logger = logging.getLogger(__name__)

MAX_TOKENS = 4096  # kept and question tokens of one forward, which bounds its hidden states


@frozen(eq=False)
class Repair:
    """One repair of a request."""

    name: str  # as the stack writes it
    params: RepairParams
    report: RepairReport
    seconds: float


@frozen(eq=False)
class Pass:
    """What goes through the model for one request."""

    attend: BlendedAttention
    token_ids: tuple[int, ...]  # the question's, then the kept tokens'
    positions: Tensor  # of each


@frozen(eq=False)
class Wanted:
    """What is to be repaired of one request."""

    prefix: Prefix  # loaded blocks and tail
    plan: Plan
    question: tuple[int, ...] = ()  # read by the reference `query_first` alone


def run_repairs(
    model: HfModel,
    cartridge: Cartridge,
    router: Router,
    requests: Sequence[tuple[Manifest, Sequence[int]]],
) -> list[tuple[Prefix | None, tuple[Repair, ...]]]:
    """A stack's repairs of each request, a manifest and a question; None of a stack without.

    They go in the order written, each on what the one before left.
    """
    if not router.stack.repairs:
        return [(None, ()) for _ in requests]
    prefixes = [load_prefix(model, cartridge, manifest.kept) for manifest, _ in requests]
    done: list[tuple[Repair, ...]] = [() for _ in requests]
    for member in router.stack.repairs:
        start, params = time.perf_counter(), repair_params(member.params)
        wanted = [
            Wanted(prefix, partial(router.plan_repair, member, manifest), tuple(question))
            for prefix, (manifest, question) in zip(prefixes, requests, strict=True)
        ]
        made = repair(model, cartridge, wanted, params)
        prefixes = [prefix for prefix, _ in made]
        seconds = (time.perf_counter() - start) / len(requests)
        own = [Repair(str(member.ref), params, report, seconds) for _, report in made]
        for one in own:
            _say(one)
        done = [(*before, one) for before, one in zip(done, own, strict=True)]
    return list(zip(prefixes, done, strict=True))


def repair(
    model: HfModel, cartridge: Cartridge, wanted: Sequence[Wanted], params: RepairParams
) -> list[tuple[Prefix, RepairReport]]:
    """Each with the KV of the planned tokens afresh; the given prefixes stay as they are."""
    _check(model, cartridge, params)
    refreshes = [Refresh(one.prefix, params, one.plan) for one in wanted]
    for refresh in refreshes:
        if not len(refresh.rows[0]):
            refresh.settle(torch.zeros(0))
    if params.reference == "full":
        _run_document(model, cartridge, refreshes)
    else:
        first = params.reference == "query_first"
        passes = [
            _pass(model, cartridge, refresh, one.question if first else ())
            for refresh, one in zip(refreshes, wanted, strict=True)
            if len(refresh.rows[0])
        ]
        for some in _forwards(passes):
            _run_kept(model, some)
    return [_finished(refresh) for refresh in refreshes]


def _finished(refresh: Refresh) -> tuple[Prefix, RepairReport]:
    report = RepairReport.of(refresh.deviation[0], tuple(refresh.rows[1].tolist()))
    prefix = evolve(refresh.stored, keys=tuple(refresh.keys), values=tuple(refresh.values))
    return prefix, report


def _check(model: HfModel, cartridge: Cartridge, params: RepairParams) -> None:
    model.check(cartridge)
    check_references(cartridge, [params])
    layers = cartridge.layout.num_layers
    if params.check_layer >= layers:
        raise ConfigError(
            f"check_layer={params.check_layer} is not a layer of {model.identity.model_id}; give "
            f"one of 0 to {layers - 1}"
        )


def _run_document(model: HfModel, cartridge: Cartridge, refreshes: Sequence[Refresh]) -> None:
    """Every token of the document, as it was built; the planned rows are taken from that."""
    token_ids = cartridge.token_ids
    cache = prefill(model, model.tokens(token_ids), model.positions(0, len(token_ids)))
    for refresh in refreshes:
        if not len(refresh.rows[0]):
            continue
        tokens = _kept(model, cartridge, refresh)
        for layer, pair in enumerate(layers_of(cache)):
            refresh.take(layer, tokens_at(pair, tokens[refresh.rows[-1]]))


def _kept(model: HfModel, cartridge: Cartridge, refresh: Refresh) -> Tensor:
    """Places in the document of the kept tokens."""
    layout = cartridge.layout
    kept = [*layout.tokens_of(refresh.stored.blocks), *layout.tail]
    return torch.tensor(kept, dtype=torch.long, device=model.device)


def _pass(model: HfModel, cartridge: Cartridge, refresh: Refresh, question: Sequence[int]) -> Pass:
    """The kept tokens alone, after a question or not; none is given another position."""
    lead, document = len(question), _kept(model, cartridge, refresh)
    order = torch.cat([torch.arange(-lead, 0, device=model.device), document])
    asked = model.positions(cartridge.layout.num_tokens, lead)[0]
    token_ids = (*question, *(cartridge.token_ids[token] for token in document.tolist()))
    attend = BlendedAttention(refresh, order, lead)
    return Pass(attend, token_ids, torch.cat([asked, document]))


def _forwards(passes: Sequence[Pass]) -> Iterator[list[Pass]]:
    """Those that go together, within MAX_TOKENS or alone."""
    some: list[Pass] = []
    for one in passes:
        if some and sum(len(other.token_ids) for other in (*some, one)) > MAX_TOKENS:
            yield some
            some = []
        some.append(one)
    if some:
        yield some


def _run_kept(model: HfModel, passes: Sequence[Pass]) -> None:
    token_ids = model.tokens([*chain.from_iterable(one.token_ids for one in passes)])
    positions = torch.cat([one.positions for one in passes])
    blended = [one.attend for one in passes]
    attend = PackedAttention(tuple((one.count, one) for one in blended))
    layers: Sequence[torch.nn.Module] = model.anatomy.layers
    with attending(model.model, attend), only_rows_in_force(layers, blended):
        model.run(token_ids, positions[None], keep=0)


def _say(repair: Repair) -> None:
    """A repair that was asked for and did nothing is not passed over (CASES 38)."""
    report = repair.report
    if not report.refreshed:
        logger.warning("%s refreshed none of %d tokens", repair.name, report.num_kept_tokens)
    elif not report.deviation_max:
        reference = repair.params.reference
        logger.warning("%s changed nothing: the KV is that of %r", repair.name, reference)
