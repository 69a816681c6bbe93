"""A cartridge of something else is refused by the name of what differs."""

from __future__ import annotations

import attrs
import pytest

from kri_core.artifacts import check_model
from kri_core.errors import ArtifactError


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("architecture", "Tiny-4-2-8"),
        ("rope", '{"scaling":"yarn"}'),
        ("weights", "w2"),
        ("revision", "r2"),
        ("tokenizer", "t2"),
    ],
)
def test_another_model_is_refused_by_field(make_cartridge, model, field, other):
    cartridge = make_cartridge()
    line = (
        f"cartridge 'doc' was made with {field} .*, the model has .*; use the model it was made "
        r"with \(models/tiny\) or build it again"
    )
    with pytest.raises(ArtifactError, match=line):
        check_model(cartridge, attrs.evolve(model, **{field: other}))


def test_another_path_and_what_is_not_known_are_accepted(make_cartridge, model):
    check_model(make_cartridge(), attrs.evolve(model, model_id="/elsewhere", tokenizer=None))


def test_a_long_value_does_not_fill_the_screen(make_cartridge, model):
    with pytest.raises(ArtifactError) as caught:
        check_model(make_cartridge(), attrs.evolve(model, rope="x" * 5000))
    assert len(str(caught.value)) < 400
