"""The door into transformers stands beside others: who wraps it, and who takes the model."""

from transformers import modeling_utils

from kri_core.substrate.hf import HfProbe
from kri_core.substrate.hf.interface import NAME
from kri_core.testing.tiny import tiny_cartridge, tiny_llama


def test_a_wrapper_that_passes_the_dropout_by_its_place_changes_nothing(monkeypatch):
    """Once imported, kvpress wraps every attention function so."""
    model = tiny_llama()
    probe = HfProbe(model, tiny_cartridge(model), (), 16)
    before = probe.forward([1, 2, 3], read=("logits",)).logits
    functions, calls = modeling_utils.ALL_ATTENTION_FUNCTIONS, []
    inner = functions[NAME]

    def wrapper(module, query, key, value, attention_mask, dropout, **options):
        calls.append(module.layer_idx)
        return inner(module, query, key, value, attention_mask, dropout, **options)

    monkeypatch.setitem(functions, NAME, wrapper)
    after = probe.forward([1, 2, 3], read=("logits",)).logits

    assert calls == [0, 1, 2]
    assert after.equal(before)


def test_a_probe_s_native_model_is_transformers_own():
    model = tiny_llama()

    assert HfProbe(model, tiny_cartridge(model), (), 16).native_model is model.model
