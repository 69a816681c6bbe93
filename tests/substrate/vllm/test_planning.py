"""From prompts to plans, without an engine: which cartridge, which rows, what is refused."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from attrs import evolve

from kri_core.artifacts import write_cartridge
from kri_core.errors import ArtifactError, ConfigError, PluginError
from kri_core.substrate.vllm.asked import Asked
from kri_core.substrate.vllm.planning import Planner
from kri_core.substrate.vllm.rows import content_hash
from kri_core.substrate.vllm.settings import Settings
from kri_core.substrate.vllm.shelf import Shelf

QUESTION = (5, 6, 7)


def planner_of(extra, block_size=16, **more):
    settings = Settings.parse(extra)
    shelf = Shelf.of(settings.cartridges, 16, lambda _: None)
    return Planner(settings, shelf, block_size, "torch.float32", **more)


@pytest.fixture
def planner(extra):
    return planner_of(extra)


def asked(shop, cart_id, question=QUESTION, **more):
    prompt = [*shop.cartridges[cart_id].token_ids, *question]
    return Asked("r", more.pop("prompt", prompt), **more)


def test_kept_blocks_and_the_tail_become_rows(planner, shop):
    """12 blocks and 8 tokens of tail: rows of the kept blocks, and row 12 for the tail."""
    plan = planner.plan(asked(shop, "plain"))

    assert (plan.kept, plan.rows) == ((0, 9, 10, 11), (0, 9, 10, 11, 12))
    assert [row for row, _ in plan.shared] == [0, 9, 10, 11]
    assert (plan.num_tokens, plan.num_rows) == (200, 13)


@pytest.mark.parametrize(
    ("physical", "rows"),
    [
        (8, [0, 1, 18, 19, 20, 21, 22, 23, 24]),  # two to a block; the tail fills one
        (4, [*range(4), *range(36, 48), 48, 49]),
    ],
)
def test_smaller_engine_blocks_take_several_rows_each(extra, shop, physical, rows):
    """CASES 36."""
    plan = planner_of(extra, physical).plan(asked(shop, "plain"))

    assert plan.kept == (0, 9, 10, 11)
    assert list(plan.rows) == rows


@pytest.mark.parametrize(
    ("physical", "kept", "rows"),
    [
        (32, (0, 3, 4, 5), (0, 3, 4, 5, 6)),  # six blocks of 32, eight tokens of tail
        (64, (0, 1, 2), (0, 1, 2, 3)),  # three blocks are fewer than the budget of four
        (128, (0,), (0, 1)),  # one block, 72 tokens of tail
    ],
)
def test_larger_engine_blocks_are_scored_by_the_mean_of_their_members(
    extra, shop, physical, kept, rows
):
    """CASES 36: rising scores still rank the last of the middle first."""
    plan = planner_of(extra, physical).plan(asked(shop, "plain"))

    assert (plan.kept, plan.rows) == (kept, rows)
    assert plan.routing_block_size == physical


def test_block_sizes_that_do_not_divide_each_other_are_refused(extra, shop):
    with pytest.raises(
        ConfigError,
        match="has blocks of 16 tokens, the engine of 24; start it with --block-size 16",
    ):
        planner_of(extra, 24).plan(asked(shop, "plain"))


@pytest.mark.parametrize(
    ("cart_id", "prompt", "tokens"),
    [
        ("plain", lambda ids: ids, 199),  # the prompt is the cartridge
        ("even", lambda ids: ids, 191),
        ("plain", lambda ids: [*ids, 3], 200),
    ],
)
def test_at_least_one_token_of_the_prompt_is_computed(planner, shop, cart_id, prompt, tokens):
    """CASES 25."""
    plan = planner.plan(
        asked(shop, cart_id, prompt=prompt(list(shop.cartridges[cart_id].token_ids)))
    )

    assert plan.num_tokens == tokens


@pytest.mark.parametrize("cut", [0, 1, 100, 199])
def test_a_prompt_that_is_not_all_of_a_cartridge_is_dense_or_refused(planner, shop, cut):
    """CASES 25: shorter, sharing a part, empty."""
    prompt = list(shop.cartridges["plain"].token_ids[:cut])

    assert planner.plan(Asked("r", prompt)) is None
    with pytest.raises(
        ConfigError, match=rf"ends after {cut} of the 200 tokens of cartridge 'plain'"
    ):
        planner.plan(Asked("r", prompt, {"cartridge_id": "plain"}))


def test_the_first_token_that_differs_is_named_with_its_text(extra, shop):
    """CASES 33: without the BOS everything is shifted by one."""
    planner = planner_of(extra, text_of={256: "'<s>'", 44: "'H'"}.get)
    tokens = list(shop.cartridges["plain"].token_ids)
    tokens[1] = 44

    with pytest.raises(ConfigError) as raised:
        planner.plan(Asked("r", [*tokens[1:], 3], {"cartridge_id": "plain"}))

    assert str(raised.value) == (
        "the prompt is not cartridge 'plain' from token 0 on: it has 44 ('H'), the cartridge 256 "
        "('<s>'); send the cartridge's own text, special tokens included"
    )


def test_two_bos_and_no_bos_are_no_cartridge_s_prompt(planner, shop):
    """CASES 33."""
    tokens = shop.cartridges["plain"].token_ids

    assert planner.plan(Asked("r", [256, *tokens, 3])) is None
    assert planner.plan(Asked("r", [*tokens[1:], 3])) is None


def test_of_two_cartridges_at_the_start_the_longer_wins(extra, shop, tmp_path):
    from kri_core.substrate.hf import build_from_tokens

    longer = [*shop.cartridges["short"].token_ids, *range(60)]
    path = tmp_path / "longer.safetensors"
    write_cartridge(build_from_tokens(shop.model, longer, cart_id="longer", block_size=16), path)
    planner = planner_of({"cartridges": {**extra["cartridges"], "longer": str(path)}})

    assert planner.plan(Asked("r", [*longer, 3])).cart_id == "longer"
    assert planner.plan(Asked("r", [*longer[:-1], 3])).cart_id == "short"


def test_a_prompt_is_hashed_once_however_many_cartridges_there_are(extra, shop, monkeypatch):
    """O(1) look-up: ten links of 16 tokens, with three cartridges as with thirty."""
    from kri_core.substrate.vllm import shelf as module

    many = {f"copy{number}": path for number in range(27) for path in [extra["cartridges"]["even"]]}
    planner = planner_of({"cartridges": {**extra["cartridges"], **many}})
    planner.shelf.match([])
    hashed = []
    blake2b = module.hashlib.blake2b
    monkeypatch.setattr(
        module.hashlib,
        "blake2b",
        lambda *args, **named: (hashed.append(1), blake2b(*args, **named))[1],
    )

    planner.shelf.match(list(range(160)))

    assert len(hashed) == 10


def test_the_question_is_as_much_of_what_follows_as_the_request_says(shop):
    whole = asked(shop, "plain", question=[5, 6, 7, 8, 9])
    part = asked(shop, "plain", question=[5, 6, 7, 8, 9], params={"question_tokens": 3})

    assert whole.question(200) == (5, 6, 7, 8, 9)
    assert part.question(200) == (5, 6, 7)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"cartridge": "plain"}, "kv_transfer_params has no 'cartridge'; it knows cartridge_id"),
        (
            {"cartridge_id": "nope"},
            "cartridge_id 'nope' is not here; give one of plain, even, short",
        ),
        ({"cartridge_id": 3}, "cartridge_id 3 is not here"),
        ({"a\r\nERROR \x1b[31m": 1}, r"kv_transfer_params has no 'a\r\nERROR \x1b[31m'; it knows"),
        (
            {"stack": "A1R1K2" + "+xa25" * 20_000},
            "stack has 100006 characters; write it in at most 1000",
        ),
        ({"stack": 3}, "stack is 3; give a text, such as A1R2K13"),
        ({"enabled": "no"}, "enabled is 'no'; give true or false"),
        (
            {"prior": "/etc/passwd"},
            "prior '/etc/passwd' is not one of cartridge 'plain', which has plain_up, plain_down",
        ),
        (
            {"question_tokens": 6},
            "question_tokens is 6, and 3 tokens follow the cartridge; give how many of these are",
        ),
        ({"question_tokens": True}, "question_tokens is True, and 3 tokens follow"),
    ],
)
def test_what_a_request_cannot_mean_is_said_in_a_line(planner, shop, params, line):
    with pytest.raises(ConfigError) as raised:
        planner.plan(asked(shop, "plain", params=params))

    assert str(raised.value).startswith(line)


@pytest.mark.parametrize("name", ["cartridge_id", "stack", "prior", "enabled", "x" * 10**6])
@pytest.mark.parametrize("value", ["x" * 10**6, ["x" * 10**6], list(range(10**6))])
def test_no_request_makes_a_long_line(planner, shop, name, value):
    with pytest.raises(ConfigError) as raised:
        planner.plan(asked(shop, "plain", params={name: value}))

    assert len(str(raised.value)) < 300


def test_a_stack_for_a_prompt_of_no_cartridge_is_refused(planner):
    with pytest.raises(
        ConfigError, match="stack is given, but the prompt starts with no cartridge"
    ):
        planner.plan(Asked("r", [1, 2, 3], {"stack": "whole"}))


def test_an_unknown_stack_or_plugin_is_a_plugin_error(planner, shop):
    with pytest.raises(PluginError, match="no split is called 'nope'"):
        planner.plan(asked(shop, "plain", params={"stack": "nope"}))


def test_an_adapter_s_request_is_dense_or_refused(planner, shop):
    """CASES 27: the cartridge is the base model's KV."""
    assert planner.plan(asked(shop, "plain", has_adapter=True)) is None
    with pytest.raises(
        ConfigError, match="is the base model's KV and the request wants an adapter"
    ):
        planner.plan(asked(shop, "plain", has_adapter=True, params={"cartridge_id": "plain"}))


def test_prompt_logprobs_of_a_cartridge_s_prompt_are_refused(planner, shop):
    with pytest.raises(ConfigError, match="prompt_logprobs needs the whole prompt computed"):
        planner.plan(asked(shop, "plain", reads_whole_prompt=True))
    assert planner.plan(Asked("r", [1, 2, 3], reads_whole_prompt=True)) is None


def test_a_request_may_ask_not_to_be_routed(planner, shop):
    assert planner.plan(asked(shop, "plain", params={"enabled": False})) is None


@pytest.mark.parametrize(
    "other",
    [
        {"cache_salt": "tenant"},
        {"dtype": "torch.bfloat16"},
        {"row_size": 32},
    ],
)
def test_rows_are_shared_only_under_equal_content(shop, other):
    usual = {"dtype": "torch.float32", "row_size": 16, "cache_salt": None}
    cartridge = shop.cartridges["plain"]

    assert content_hash(cartridge, **usual) == content_hash(cartridge, **usual)
    assert content_hash(cartridge, **usual) != content_hash(cartridge, **(usual | other))
    for name in ("sha256", "prefix_hash"):
        changed = evolve(cartridge, **{name: "0" * 64})
        assert content_hash(cartridge, **usual) != content_hash(changed, **usual)
    model = evolve(cartridge.model, weights="0" * 64)
    assert content_hash(cartridge, **usual) != content_hash(evolve(cartridge, model=model), **usual)


def test_a_hundred_cartridges_are_offered_without_their_kv_being_read(shop, tmp_path):
    """Bytes that the process was given by the file system, against the bytes of the files."""
    for number in range(100):
        os.link(shop.paths["plain"], tmp_path / f"{number}.safetensors")
    extra = {"cartridges": {str(n): str(tmp_path / f"{n}.safetensors") for n in range(100)}}
    before = _read_so_far()

    planner_of(extra)

    assert _read_so_far() - before < 0.1 * 100 * shop.paths["plain"].stat().st_size


def _read_so_far():
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def test_a_replaced_file_is_taken_in_and_a_gone_one_said(extra, shop, tmp_path):
    path = tmp_path / "c.safetensors"
    write_cartridge(shop.cartridges["short"], path)
    planner = planner_of({"cartridges": {"c": str(path)}})
    first = planner.plan(asked(shop, "short", params={"cartridge_id": "c"}))

    write_cartridge(shop.cartridges["even"], path)
    second = planner.plan(asked(shop, "even", params={"cartridge_id": "c"}))
    path.unlink()

    assert first.sha256 != second.sha256
    with pytest.raises(ArtifactError, match=r"c\.safetensors: cannot be opened \(No such file"):
        planner.plan(asked(shop, "even", params={"cartridge_id": "c"}))


def test_a_replaced_file_is_found_by_its_new_tokens(shop, tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    write_cartridge(shop.cartridges["short"], path)
    planner = planner_of({"cartridges": {"c": str(path)}})
    assert planner.plan(asked(shop, "even")) is None

    write_cartridge(shop.cartridges["even"], path)
    now = time.monotonic() + 5
    monkeypatch.setattr(time, "monotonic", lambda: now)

    assert planner.plan(asked(shop, "even")).cart_id == "c"
    assert planner.plan(asked(shop, "short")) is None


def test_a_damaged_file_is_said_to_a_prompt_of_its_tokens_and_is_found_again(
    shop, tmp_path, monkeypatch
):
    """Not served dense in silence, neither while it is damaged nor ever after."""
    clock = iter(range(0, 1000, 5))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    path = tmp_path / "c.safetensors"
    write_cartridge(shop.cartridges["short"], path)
    planner = planner_of({"cartridges": {"c": str(path)}})
    whole = path.read_bytes()

    path.write_bytes(whole[:5000])
    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"c\.safetensors: is cut short: 5000 bytes"):
            planner.plan(asked(shop, "short"))
    path.write_bytes(whole)

    assert planner.plan(asked(shop, "short")).cart_id == "c"


def test_a_server_does_not_start_with_a_cartridge_it_cannot_read(tmp_path):
    with pytest.raises(ArtifactError, match=r"gone\.safetensors: cannot be opened"):
        planner_of({"cartridges": {"c": str(tmp_path / "gone.safetensors")}})


def test_a_cartridge_without_tokens_cannot_be_offered(shop, tmp_path):
    import torch

    path = tmp_path / "foreign.pt"
    torch.save([(torch.zeros(1, 2, 20, 32), torch.zeros(1, 2, 20, 32))] * 3, path)

    with pytest.raises(ArtifactError, match="'c' does not know its tokens"):
        planner_of({"cartridges": {"c": str(path)}})


def test_an_imported_cartridge_takes_its_tokens_from_its_manifest(tmp_path):
    import json

    import torch

    path, manifest = tmp_path / "foreign.pt", tmp_path / "ids.json"
    torch.save([(torch.zeros(1, 2, 20, 32), torch.zeros(1, 2, 20, 32))] * 3, path)
    manifest.write_text(json.dumps(list(range(20))))
    row = {"cartridge_id": "c", "path": str(path), "manifest_path": str(manifest)}

    plan = planner_of({"cartridges": [row]}).plan(Asked("r", [*range(20), 3]))

    assert (plan.cart_id, plan.rows, plan.num_tokens) == ("c", (0, 1), 20)


def test_a_server_whose_stack_is_not_installed_does_not_start(extra):
    """A refused start where the configuration is at fault."""
    planner = planner_of(extra | {"routing": {"stack": "A1R1K2(no-such-scorer)"}})

    with pytest.raises(PluginError, match="no scorer is called 'no-such-scorer'"):
        planner.check_offers()


def test_a_server_whose_prior_is_another_cartridge_s_does_not_start(extra, shop):
    routing = {"stack": "A1R1K2", "priors": {"plain": str(shop.priors["short"][0])}}

    with pytest.raises(ArtifactError, match="the prior was not baked for cartridge 'plain'"):
        planner_of(extra | {"routing": routing}).check_offers()
    planner_of(extra).check_offers()


def test_a_server_whose_stack_reads_questions_over_blocks_does_not_start(extra):
    pytest.importorskip("kri_plugin_q")

    def offers(source):
        stack = f"A1R1K2(quest[source={source}])"
        planner_of({"cartridges": extra["cartridges"], "routing": {"stack": stack}}).check_offers()

    with pytest.raises(ConfigError, match=r"write A1R1K2\(quest\[source=layer0\]\)$"):
        offers("pinned")
    offers("layer0")
