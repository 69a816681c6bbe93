"""One pass over the document for every scorer of a bake that watches it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from kri_core.errors import PluginError
from kri_core.probe import PrefillChunk, PrefillWatcher
from kri_core.stack import Member

if TYPE_CHECKING:
    from torch import Tensor

    from kri_core.cartridge import Cartridge
    from kri_core.probe import Probe

WATCH = "kri_watch_prefill"


@frozen(eq=False)
class Watching:
    """A scorer and its watcher."""

    scorer: Member
    watcher: PrefillWatcher

    @classmethod
    def begin(cls, scorer: Member, cartridge: Cartridge) -> Watching:
        """Ask a scorer for its watcher."""
        watcher = scorer.call(WATCH, cartridge=cartridge)
        if not all(hasattr(watcher, name) for name in ("first_token", "see", "scores")):
            raise PluginError(
                f"{scorer.plugin.row.label}: {WATCH} must return a watcher with first_token, see "
                f"and scores; got {type(watcher).__name__}"
            )
        return cls(scorer, watcher)  # type: ignore[arg-type]

    def see(self, chunk: PrefillChunk) -> None:
        """Show a chunk, without the tokens before the watcher's first one."""
        skipped = max(0, self.watcher.first_token - chunk.first_token)
        if skipped >= chunk.queries.shape[1]:
            return
        if skipped:
            chunk = evolve(
                chunk,
                first_token=chunk.first_token + skipped,
                queries=chunk.queries[:, skipped:],
                block_mass=chunk.block_mass[:, skipped:],
            )
        with self.scorer.blamed(WATCH):
            self.watcher.see(chunk)

    def scores(self) -> Tensor:
        """What the watcher found."""
        with self.scorer.blamed(WATCH):
            return self.watcher.scores()


def watch_prefill(
    scorers: Sequence[Member], cartridge: Cartridge, probe: Probe
) -> dict[Member, Tensor]:
    """Scores of the scorers that watch; the others are left out, and without any no pass is run."""
    watching = [Watching.begin(s, cartridge) for s in scorers if s.answers(WATCH)]

    def show(chunk: PrefillChunk) -> None:
        for each in watching:
            each.see(chunk)

    if watching:
        probe.prefill(show, min(each.watcher.first_token for each in watching))
    return {each.scorer: each.scores() for each in watching}
