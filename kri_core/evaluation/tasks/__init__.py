"""What is asked: documents, questions, and how an answer is scored from log-probabilities.

A package of yours adds a task by an entry point of the group `kri_core.tasks` that names an attrs
class derived from `Task`. All that it needs is here.
"""

from __future__ import annotations

from kri_core.evaluation.tasks.contract import (
    Document,
    Item,
    ProbeSet,
    Scores,
    Task,
    Tokenizer,
    chance,
    check_probes,
)
from kri_core.evaluation.tasks.items import Agreement, Answer, Choice, Recall
from kri_core.evaluation.tasks.loading import load_task, task_class
from kri_core.evaluation.tasks.log_probs import LogProbs, Reading
from kri_core.evaluation.tasks.scoring import Metric, Span

__all__ = [
    "Agreement",
    "Answer",
    "Choice",
    "Document",
    "Item",
    "LogProbs",
    "Metric",
    "ProbeSet",
    "Reading",
    "Recall",
    "Scores",
    "Span",
    "Task",
    "Tokenizer",
    "chance",
    "check_probes",
    "load_task",
    "task_class",
]
