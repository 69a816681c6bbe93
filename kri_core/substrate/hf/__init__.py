"""transformers as a substrate: build, probe and answer; the numerical reference of the project."""

from __future__ import annotations

from kri_core.substrate.hf.agreement import divergence
from kri_core.substrate.hf.build import build_cartridge, build_from_tokens
from kri_core.substrate.hf.calibrate import calibrate
from kri_core.substrate.hf.chat import document_ids, encode_with, question_ids
from kri_core.substrate.hf.generate import Answer, answer, load_prefix
from kri_core.substrate.hf.identity import tokenizer_digest
from kri_core.substrate.hf.journal import DiskJournal, Journal, MemoryJournal, journal_scope
from kri_core.substrate.hf.load import load_model, load_tokenizer
from kri_core.substrate.hf.model import HfModel
from kri_core.substrate.hf.probe import HfProbe, probe_texts
from kri_core.substrate.hf.repair import Repair, repair, run_repairs
from kri_core.substrate.hf.together import Text, read_together

__all__ = [
    "Answer",
    "DiskJournal",
    "HfModel",
    "HfProbe",
    "Journal",
    "MemoryJournal",
    "Repair",
    "Text",
    "answer",
    "build_cartridge",
    "build_from_tokens",
    "calibrate",
    "divergence",
    "document_ids",
    "encode_with",
    "journal_scope",
    "load_model",
    "load_prefix",
    "load_tokenizer",
    "probe_texts",
    "question_ids",
    "read_together",
    "repair",
    "run_repairs",
    "tokenizer_digest",
]
