"""Repair: the KV of some kept tokens computed afresh, after loading and before the question.

What is fresh is named by the reference (ALGORITHMS 9.4). `routed`: the kept tokens alone, at their
own positions. `query_first`: the same after the question, which every kept token sees. Both compute
all n kept tokens up to the check layer and then the planned ones over the blended KV: about
(check_layer + 1) / layers · n + ratio · n token-forwards. `full`: a prefill of the whole document.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

import torch
from attrs import evolve, frozen

from kri_core.errors import ConfigError
from kri_core.repairing import RepairParams, RepairReport, check_references, repair_params
from kri_core.routing import Router
from kri_core.substrate.hf.build import layers_of, prefill
from kri_core.substrate.hf.generate import load_prefix
from kri_core.substrate.hf.interface import attending
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.prefix import Prefix
from kri_core.substrate.hf.refreshing import (
    BlendedAttention,
    Plan,
    Refresh,
    only_rows_in_force,
    tokens_at,
)
from kri_core.types import Cartridge, Manifest

logger = logging.getLogger(__name__)


@frozen(eq=False)
class Repair:
    """One repair of a request."""

    name: str  # as the stack writes it
    params: RepairParams
    report: RepairReport
    seconds: float


def run_repairs(
    model: HfModel,
    cartridge: Cartridge,
    router: Router,
    manifest: Manifest,
    question: Sequence[int],
) -> tuple[Prefix | None, tuple[Repair, ...]]:
    """A stack's repairs in the order written, each on what the one before left; None of none."""
    if not router.stack.repairs:
        return None, ()
    prefix, done = load_prefix(model, cartridge, manifest.kept), list[Repair]()
    for member in router.stack.repairs:
        start = time.perf_counter()
        params, plan = repair_params(member.params), partial(router.plan_repair, member, manifest)
        prefix, report = repair(model, cartridge, prefix, plan, params, question)
        done.append(Repair(str(member.ref), params, report, time.perf_counter() - start))
        _say(done[-1])
    return prefix, tuple(done)


def repair(
    model: HfModel,
    cartridge: Cartridge,
    prefix: Prefix,
    plan: Plan,
    params: RepairParams,
    question: Sequence[int] = (),
) -> tuple[Prefix, RepairReport]:
    """Loaded blocks and tail with the KV of the planned tokens afresh; the given ones stay.

    `question` is read by the reference `query_first` alone.
    """
    _check(model, cartridge, params)
    layout = cartridge.layout
    kept = [*layout.tokens_of(prefix.blocks), *layout.tail]
    refresh = Refresh(prefix, params, plan)
    if not kept:
        refresh.deviation.append(torch.zeros(0))
        refresh.rows.append(refresh.rows[0].new_tensor(plan(torch.zeros(0)).tokens))
    elif params.reference == "full":
        _run_document(model, cartridge, refresh, kept)
    else:
        asked = tuple(question) if params.reference == "query_first" else ()
        _run_kept(model, cartridge, refresh, kept, asked)
    report = RepairReport.of(refresh.deviation[0], tuple(refresh.rows[1].tolist()))
    return evolve(prefix, keys=tuple(refresh.keys), values=tuple(refresh.values)), report


def _check(model: HfModel, cartridge: Cartridge, params: RepairParams) -> None:
    model.check(cartridge)
    check_references(cartridge, [params])
    layers = cartridge.layout.num_layers
    if params.check_layer >= layers:
        raise ConfigError(
            f"check_layer={params.check_layer} is not a layer of {model.identity.model_id}; give "
            f"one of 0 to {layers - 1}"
        )


def _run_document(
    model: HfModel, cartridge: Cartridge, refresh: Refresh, kept: Sequence[int]
) -> None:
    """Every token of the document, as it was built; the planned rows are taken from that."""
    token_ids = cartridge.token_ids
    cache = prefill(model, model.tokens(token_ids), model.positions(0, len(token_ids)))
    tokens = torch.tensor(kept, device=model.device)
    for layer, pair in enumerate(layers_of(cache)):
        refresh.take(layer, tokens_at(pair, tokens[refresh.rows[-1]]))


def _run_kept(
    model: HfModel,
    cartridge: Cartridge,
    refresh: Refresh,
    kept: Sequence[int],
    question: Sequence[int],
) -> None:
    """The kept tokens alone, after a question or not; none is given another position."""
    lead, end = len(question), cartridge.layout.num_tokens
    document = torch.tensor(kept, device=model.device)
    positions = torch.cat([model.positions(end, lead)[0], document])
    order = torch.cat([torch.arange(-lead, 0, device=model.device), document])
    token_ids = model.tokens([*question, *(cartridge.token_ids[token] for token in kept)])
    attend = BlendedAttention(refresh, order, lead)
    layers: Sequence[torch.nn.Module] = model.anatomy.layers
    with attending(model.model, attend), only_rows_in_force(layers, refresh, lead):
        model.run(token_ids, positions[None], keep=0)


def _say(repair: Repair) -> None:
    """A repair that was asked for and did nothing is not passed over (CASES 38)."""
    report = repair.report
    if not report.refreshed:
        logger.warning("%s refreshed none of %d tokens", repair.name, report.num_kept_tokens)
    elif not report.deviation_max:
        reference = repair.params.reference
        logger.warning("%s changed nothing: the KV is that of %r", repair.name, reference)
