"""The fake model is causal, its cartridge is its own KV, and its probe removes what it says."""

import pytest
import torch

from kri_core.testing import FakeModel, FakeProbe

DOCUMENT, TEXT = tuple(range(10, 24)), (3, 8, 1)  # three blocks of 4 and a tail of 2
READ = ("hidden", "logits", "queries", "pre_rope_queries", "block_mass", "head_outputs", "scaling")


@pytest.fixture
def model():
    return FakeModel.random()


@pytest.fixture
def probe(model):
    return FakeProbe(model, model.cartridge(DOCUMENT), batch=2)


def visible(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def test_a_probe_continues_the_document_as_if_it_had_been_run_in_one(model, probe):
    together = model.run(DOCUMENT + TEXT, range(17))
    read = probe.forward(TEXT, read=READ)

    torch.testing.assert_close(read.hidden[0], together.hidden[:, 14:])
    torch.testing.assert_close(read.logits[0], together.logits[14:])
    torch.testing.assert_close(read.queries[0], together.queries[:, :, 14:])
    mass = together.weights[:, :, 14:, :12].reshape(3, 4, 3, 3, 4).sum(-1)
    torch.testing.assert_close(read.block_mass[0], mass)
    torch.testing.assert_close(read.head_outputs[0], together.outputs[:, :, 14:])
    inputs = model.embedding[list(TEXT)]
    for layer, outputs in enumerate(read.head_outputs[0]):
        inputs = inputs + (outputs @ probe.output_projection(layer)).sum(0)
        torch.testing.assert_close(inputs, read.hidden[0, layer])
    assert read.scaling.equal(torch.full((1, 3), 8**-0.5))


def test_the_model_is_causal_and_positions_matter(model):
    longer, shorter = model.run((1, 2, 3, 4), range(4)), model.run((1, 2, 3), range(3))
    torch.testing.assert_close(longer.logits[:3], shorter.logits)
    assert not torch.allclose(shorter.logits, model.run((1, 2, 3), (0, 1, 5)).logits, atol=1e-4)


@pytest.mark.parametrize("removal", ["mask", "reprefill"])
def test_an_invisible_block_is_absent_whatever_it_holds(model, probe, removal):
    shown = visible([True, False, True], [True, True, True])
    read = probe.forward(TEXT, read=READ, visible=shown, removal=removal)
    probe.cartridge.kv[1] = 1e6
    again = probe.forward(TEXT, read=READ, visible=shown[:1], removal=removal)

    assert again.hidden[0].equal(read.hidden[0])
    assert not read.block_mass[0, ..., 1].any()
    assert (read.block_mass[1] > 0).all()
    assert (read.block_mass.sum(-1) < 1).all()
    assert not torch.allclose(read.logits[0], read.logits[1], atol=1e-4)


def test_last_limits_every_reading(probe):
    full, last = probe.forward(TEXT, read=READ), probe.forward(TEXT, read=READ, last=1)
    assert last.hidden.equal(full.hidden[:, :, -1:])
    assert last.logits.equal(full.logits[:, -1:])
    assert last.queries.equal(full.queries[:, :, :, -1:])
    assert last.pre_rope_queries.equal(full.pre_rope_queries[:, :, :, -1:])
    assert last.block_mass.equal(full.block_mass[:, :, :, -1:])
    assert last.head_outputs.equal(full.head_outputs[:, :, :, -1:])


def test_prefill_shows_every_token_of_every_layer_once(model, probe):
    chunks = []
    probe.prefill(chunks.append)
    trace = model.run(DOCUMENT, range(14))
    for layer in range(3):
        mine = [chunk for chunk in chunks if chunk.layer == layer]
        assert [chunk.first_token for chunk in mine] == [0, 5, 10]
        torch.testing.assert_close(
            torch.cat([chunk.queries for chunk in mine], 1), trace.queries[layer]
        )
        mass = torch.cat([chunk.block_mass for chunk in mine], 1)  # [q_head, token, block]
        torch.testing.assert_close(mass[:, :12].sum(-1), torch.ones(4, 12))


def test_each_runs_batches_in_order_and_resumes_what_was_kept(model, probe):
    asked = []

    def run(units):
        asked.append(list(units))
        return torch.tensor(units)[:, None] * 10

    assert probe.each("work", range(5), run).tolist() == [[0], [10], [20], [30], [40]]
    assert asked == [[0, 1], [2, 3], [4]]
    resumed = FakeProbe(model, probe.cartridge, kept=probe.kept)
    assert len(resumed.each("work", range(5), run)) == 5
    assert len(asked) == 3


def test_its_own_model_is_the_fake_one(model, probe):
    assert probe.native_model is model


def test_gradients_are_the_slopes_of_the_loss():
    """Each token of a block, and each head's output, moved one after the other, in float64."""
    model = FakeModel.random(dtype=torch.float64)
    probe = FakeProbe(model, model.cartridge(DOCUMENT, dtype=torch.float64))
    given = probe.gradients(TEXT, (6, 4))

    def slope(at, place):
        ends = []
        for step in (1e-5, -1e-5):
            sizes = (3, 2, 17, 8), (3, 4, 3, 8)  # keys attended to, heads' outputs
            nudges = [torch.zeros(size, dtype=torch.float64) for size in sizes]
            nudges[at][place] = step
            logits = model.run(TEXT, range(14, 17), probe._past(), nudges=nudges).logits
            ends.append(-logits[1:].log_softmax(-1)[range(2), (6, 4)].mean())
        return (ends[0] - ends[1]) / 2e-5

    keys = torch.stack([torch.stack([slope(0, (1, 0, t, d)) for d in range(8)]) for t in range(17)])
    block = keys[4:8]
    torch.testing.assert_close(given.key_sums[1, 0, 1], block.sum(0), rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(given.key_norms[1, 0, 1], block.norm(dim=-1).sum())
    torch.testing.assert_close(given.other_keys[1, 0], keys[12:].sum(0), rtol=1e-5, atol=1e-9)
    outputs = torch.stack([slope(1, (2, 3, 1, d)) for d in range(8)])
    torch.testing.assert_close(given.head_outputs[2, 3, 1], outputs, rtol=1e-5, atol=1e-9)
