"""What a model is asked about a document when the user gives no probe texts.

Generic on purpose: a probe that resembles the questions to come scores better (EVAL.md, `domain`
against `generic`), so a user who knows them passes `--probes`. Openings of answers come from
ALGORITHMS 14.5, repetition from KVzip (arXiv 2505.23416), instructions from ALGORITHMS 1.2. Each
starts a new paragraph, so that none continues the document's last sentence.
"""

from __future__ import annotations

DEFAULT_PROBE_TEXTS: tuple[str, ...] = (
    "\n\nThe most important facts in this document are",
    "\n\nIn summary, the document says that",
    "\n\nAccording to the document, the",
    "\n\nThe key details to remember are",
    "\n\nThe names, numbers and dates mentioned above are",
    "\n\nThe answer to the question can be found where the document says",
    "\n\nSummarise the document in a few sentences.",
    "\n\nRepeat the previous context exactly.",
)
