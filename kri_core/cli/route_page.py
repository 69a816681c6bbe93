"""One self-contained HTML page that shows which blocks of a document a request sees."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kri_core.explain import BlockReason
from kri_core.types import Manifest

_STYLE = """
body { font: 16px/1.6 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1b1f24; background: #fff }
code { font-size: .95em }
.map { display: flex; flex-wrap: wrap; gap: 2px; margin: 1rem 0 2rem }
.map a { width: 14px; height: 14px; border-radius: 2px; background: #d8dee4 }
.text { white-space: pre-wrap }
.skipped { color: #8c959f }
.mid { background: #ffe08a } .anchor { background: #a5d8ff } .recent { background: #b2f2bb }
.map .mid { background: #f08c00 } .map .anchor { background: #1971c2 }
.map .recent { background: #2f9e44 }
@media (prefers-color-scheme: dark) {
  body { color: #e6edf3; background: #0d1117 } .map a { background: #30363d }
  .skipped { color: #6e7681 } .text .mid { background: #5c4400 }
  .text .anchor { background: #0c3d66 } .text .recent { background: #124d1f }
}
"""


def route_page(manifest: Manifest, reasons: Sequence[BlockReason]) -> str:
    """A page with a map of all blocks and the document's text, the kept blocks marked."""
    squares = "".join(f'<a href="#b{r.block}" {_marks(r)}></a>' for r in reasons)
    texts = "".join(
        f'<span id="b{r.block}" {_marks(r)}>{escape(r.text or "")}</span>' for r in reasons
    )
    title = escape(f"{manifest.cart_id}: {manifest.stack}")
    share = f"{len(manifest.kept)} of {manifest.total_blocks} blocks ({manifest.kept_fraction:.1%})"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1><code>{escape(manifest.stack)}</code></h1>"
        f"<p>Cartridge <code>{escape(manifest.cart_id)}</code>: {share} are attended to: "
        '<span class="anchor">anchor</span>, <span class="mid">mid</span>, '
        '<span class="recent">recent</span>; <span class="skipped">the rest is absent</span>.</p>'
        f'<div class="map">{squares}</div><div class="text">{texts}</div></html>\n'
    )


def _marks(reason: BlockReason) -> str:
    kept = "kept" if reason.kept else "absent"
    title = escape(f"block {reason.block}, {kept}: {reason.why}", quote=True)
    return f'class="{reason.part if reason.kept else "skipped"}" title="{title}"'
