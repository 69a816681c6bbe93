"""A tiny model on disk, three cartridges of it, and a real vLLM engine in this process.

vLLM keeps its engine in globals of the process, so an engine lives as long as its module's tests
and the next module starts another. CPU attention takes heads of 32 numbers and more.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from kri_core.artifacts import write_cartridge, write_prior
from kri_core.prior import Prior
from kri_core.substrate.hf import answer, build_from_tokens, load_model
from kri_core.testing.tiny import random_tokens, save_tiny
from kri_core.types import BlockScores

BLOCK = 16
DOCUMENTS = {"plain": 200, "even": 192, "short": 100}  # plain and short have a tail, even has none
QUESTION = [5, 6, 7, 8, 9]
ANSWER = 6  # tokens
START_SECONDS = 400  # of a server, on two busy cores and with its self-check; alone about 60
CLOSE = 1e-4  # of log-probabilities, against the hf substrate in float32


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """The model, its cartridges and two priors for each, on disk and in memory."""
    import torch

    root = tmp_path_factory.mktemp("shop")
    model_path = save_tiny(root / "model", head_dim=32, hidden_size=64)
    model = load_model(str(model_path), dtype="float32")
    cartridges, paths, priors = {}, {}, {}
    for number, (name, count) in enumerate(DOCUMENTS.items()):
        tokens = [256, *random_tokens(count - 1, seed=number)]
        cartridge = build_from_tokens(model, tokens, cart_id=name, block_size=BLOCK)
        paths[name] = root / f"{name}.safetensors"
        write_cartridge(cartridge, paths[name])
        cartridges[name] = cartridge
        priors[name] = [root / f"{name}_up.pt", root / f"{name}_down.pt"]
        rising = torch.arange(cartridge.layout.num_blocks, dtype=torch.float32).sqrt()
        for path, values in zip(priors[name], (rising, -rising), strict=True):
            write_prior(Prior(scores=BlockScores(values[None, None])), path)
    return SimpleNamespace(
        root=root,
        model_path=model_path,
        model=model,
        cartridges=cartridges,
        paths=paths,
        priors=priors,
    )


@pytest.fixture(scope="session")
def extra(shop):
    """`kv_connector_extra_config` of the shop."""
    return {
        "cartridges": {name: str(path) for name, path in shop.paths.items()},
        "routing": {
            "stack": "A1R1K2",
            "priors": {name: [str(path) for path in paths] for name, paths in shop.priors.items()},
        },
    }


class Engine:
    """A vLLM engine in this process, asked one by one or all at once."""

    def __init__(self, shop, llm):
        self.shop = shop
        self.llm = llm

    @property
    def core(self):
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self):
        return self.core.scheduler

    @property
    def dispatcher(self):
        return self.scheduler.connector.dispatcher

    @property
    def worker(self):
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker

    @property
    def runner(self):
        return self.core.model_executor.driver_worker.worker.model_runner

    @property
    def builder(self):
        return self.runner.attn_groups[0][0].get_metadata_builder(0)

    @property
    def layers(self):
        return list(self.worker._loader.layers.values())

    @property
    def free_blocks(self):
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def prompt(self, cart_id, question=QUESTION):
        return [*self.shop.cartridges[cart_id].token_ids, *question]

    def params(self, tokens=ANSWER, salt=None, **kv_transfer_params):
        from vllm import SamplingParams

        extra = {"kv_transfer_params": kv_transfer_params} if kv_transfer_params else None
        return SamplingParams(
            temperature=0, max_tokens=tokens, logprobs=0, ignore_eos=True, extra_args=extra
        )

    def ask(self, cart_id, question=QUESTION, tokens=ANSWER, salt=None, **kv_transfer_params):
        (said,) = self.ask_all([(cart_id, question, kv_transfer_params)], tokens, salt)
        return said

    def ask_all(self, requests, tokens=ANSWER, salt=None):
        """(cart_id or token ids, question, kv_transfer_params) each, in one batch."""
        prompts, params = [], []
        for document, question, asked in requests:
            ids = self.prompt(document, question) if isinstance(document, str) else document
            prompts.append({"prompt_token_ids": ids} | ({"cache_salt": salt} if salt else {}))
            params.append(self.params(tokens, **asked))
        return [said(output) for output in self.llm.generate(prompts, params, use_tqdm=False)]

    def reference(self, cart_id, kept, question=QUESTION, tokens=ANSWER):
        """The hf substrate's answer over the same blocks; it may stop earlier."""
        cartridge = self.shop.cartridges[cart_id]
        return answer(self.shop.model, cartridge, kept, list(question), tokens)

    def forget(self):
        """An empty prefix cache; no request may be live."""
        assert self.scheduler.kv_cache_manager.reset_prefix_cache()


def said(output):
    """What one request came to."""
    (one,) = output.outputs
    return SimpleNamespace(
        tokens=list(one.token_ids),
        logprobs=[
            of[token].logprob for token, of in zip(one.token_ids, one.logprobs or (), strict=False)
        ],
        finish=one.finish_reason,
        kri=(output.kv_transfer_params or {}).get("kri"),
    )


@contextmanager
def started(shop, extra, **options):
    """An engine in this process, and none after it."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM
    from vllm.config import KVTransferConfig
    from vllm.distributed import cleanup_dist_env_and_memory

    transfer = None
    if extra is not None:
        transfer = KVTransferConfig(
            kv_connector="CartridgeConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
    settings = {
        "dtype": "float32",
        "block_size": BLOCK,
        "max_model_len": 512,
        "enforce_eager": True,
        "disable_log_stats": False,
        "kv_transfer_config": transfer,
    }
    llm = LLM(**{"model": str(shop.model_path)} | settings | options)
    try:
        yield Engine(shop, llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


@contextmanager
def served(arguments, folder):
    """`kri-core serve` in a process of its own on a free port; gone when the tests are."""
    log, port = folder / "log", _free_port()
    command = [sys.executable, "-m", "kri_core.cli", "serve", *arguments]
    command += ["--host=127.0.0.1", f"--port={port}"]
    with log.open("w") as file:
        process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file, cwd=folder)
        server = SimpleNamespace(process=process, url=f"http://127.0.0.1:{port}", folder=folder)
        try:
            _wait(server, log)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()


def _free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def _wait(server, log):
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        assert server.process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture(scope="session")
def serve():
    """`served` for a test's own flags."""
    return served


@pytest.fixture(scope="module")
def start(shop, extra):
    """`started` for a test's own configuration."""

    def of(settings=extra, **options):
        return started(shop, settings, **options)

    return of


@pytest.fixture(scope="module")
def engine(start):
    """The shop served with chunks of at most 64 tokens."""
    pytest.importorskip("vllm", reason="vLLM is not installed here (see docs/serving.md)")
    with start(max_num_batched_tokens=64, max_num_seqs=16) as running:
        yield running


@pytest.fixture(scope="session")
def agree():
    """Whether an answer is the reference's: the same tokens, log-probabilities within CLOSE."""

    def of(said, reference):
        count = len(reference.token_ids)
        assert said.tokens[:count] == list(reference.token_ids)
        assert said.logprobs[:count] == pytest.approx(list(reference.logprobs), abs=CLOSE)

    return of
