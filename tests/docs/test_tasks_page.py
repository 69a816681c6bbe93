"""The page on tasks: its example works, and it names every task and score."""

import re
import sys
import tomllib

import pytest

from kri_core.evaluation.tasks import Agreement, Answer, Choice, Recall, load_task
from kri_core.evaluation.tasks.needle import JOINT_METRICS


class Characters:
    """One token per character."""

    def encode(self, text):
        return [ord(character) for character in text]


@pytest.fixture
def page(root):
    return root / "docs" / "tasks.md"


def test_the_task_of_the_page_is_found_and_asks_what_it_says(environment, files_shown, page):
    files = files_shown(page)
    project = tomllib.loads(files["kri-task-parrot/pyproject.toml"])["project"]
    source = files["kri-task-parrot/kri_task_parrot.py"]
    points = {group: dict(names) for group, names in project["entry-points"].items()}
    environment.install(project["name"], points, {"kri_task_parrot": source})
    tiger, piano, *_ = found = list(load_task("parrot", {"noise": "2"}).documents(Characters()))

    said = " blah blah The parrot said the word tiger. blah blah"
    assert bytes(tiger.token_ids).decode() == said
    assert b" piano. blah" in bytes(piano.token_ids)
    ((item,), (span,)) = tiger.items, tiger.items[0].evidence
    assert item.chance == {"mc": 0.25}
    assert said[span.start : span.stop] == " The parrot said the word tiger."
    assert [item.correct for document in found for item in document.items] == [0, 1, 2, 3]
    assert sys.modules["kri_task_parrot"]


def test_every_task_and_score_is_on_the_page(root, page):
    text = page.read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    metrics = (m.name for item in (Agreement, Answer, Choice, Recall) for m in item.metrics)
    names = {*project["entry-points"]["kri_core.tasks"], *metrics}

    assert sorted(name for name in names if not re.search(rf"`{name}[ `]", text)) == []
    assert [metric.name for metric in JOINT_METRICS] == ["joint-em-2", "joint-em-4"]
    assert "`joint-em-2`, `-4`" in text
