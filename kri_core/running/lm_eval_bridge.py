"""Tasks of lm-eval through stacks: each is evaluated in turn, full attention first."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import Any

from attrs import frozen

from kri_core.errors import ConfigError, EngineError, KriError, one_line
from kri_core.grammar import parse
from kri_core.registry import Registry
from kri_core.routing import Router
from kri_core.running.caching import Cache
from kri_core.running.lm_eval_reading import ContextReader
from kri_core.running.provenance import code_version, plugin_versions
from kri_core.stack import Stack
from kri_core.substrate.hf import HfModel

FULL = "full"


@frozen
class LmEvalOptions:
    """What is evaluated."""

    tasks: tuple[str, ...]
    include_path: Path | None
    split_at: str
    limit: int | None  # items of each task; None: all


def check_lm_eval() -> None:
    """Refuse before a model is loaded."""
    if find_spec("lm_eval") is None:
        raise EngineError("this needs lm-eval; run pip install 'kri-core[lm-eval]'")


def load_routers(stacks: Sequence[str]) -> dict[str, Router]:
    """A router of each stack, by its canonical name."""
    registry = Registry.discover()
    loaded = [Stack.load(parse(text), registry) for text in stacks]
    return {str(stack.config): Router(stack, registry) for stack in loaded}


def evaluate(
    model: HfModel, routers: dict[str, Router], cache: Path, options: LmEvalOptions
) -> dict[str, object]:
    """lm-eval's results of full attention and each stack, and how the requests were read."""
    import lm_eval
    from lm_eval.utils import handle_non_serializable

    split_at = options.split_at
    with redirect_stdout(sys.stderr):
        manager = _manager(options)
        rows = [
            _row(name, ContextReader(model, router, Cache(cache), split_at), options, manager)
            for name, router in [(FULL, None), *routers.items()]
        ]
    found = {
        "lm_eval": lm_eval.__version__,
        "code": code_version(),
        "model": model.identity.model_id,
        "fingerprint": model.identity.fingerprint,
        "dtype": str(model.dtype).removeprefix("torch."),
        "split_at": split_at,
        "rows": rows,
    }
    plain: dict[str, object] = json.loads(json.dumps(found, default=handle_non_serializable))
    return plain


def _manager(options: LmEvalOptions) -> Any:  # noqa: ANN401 - lm-eval is not here where types are
    from lm_eval.tasks import TaskManager

    include = None if options.include_path is None else str(options.include_path)
    with _blamed(options):
        manager = TaskManager(include_path=include)
    for name in options.tasks:
        if name not in manager.all_tasks:
            raise ConfigError(
                f"lm-eval has no task {name!r}; lm-eval ls tasks lists them, and --include-path "
                "adds a folder of your own"
            )
    return manager


def _row(
    name: str,
    reader: ContextReader,
    options: LmEvalOptions,
    manager: Any,  # noqa: ANN401
) -> dict[str, object]:
    from lm_eval import simple_evaluate

    from kri_core.running.lm_eval_model import RoutedLM

    with _blamed(options):
        results = simple_evaluate(
            RoutedLM(reader),
            tasks=list(options.tasks),
            limit=options.limit,
            task_manager=manager,
            log_samples=False,
        )
    kept = reader.kept_fractions
    return {
        "stack": name,
        "plugins": plugin_versions(None if reader.router is None else reader.router.stack),
        "routed": len(kept) - reader.dense,
        "dense": reader.dense,
        "kept_fraction": sum(kept) / len(kept) if kept else None,
        "results": results,
    }


@contextmanager
def _blamed(options: LmEvalOptions) -> Iterator[None]:
    """Tasks fail in ways of their own: data that is not there, a template, a metric."""
    try:
        yield
    except KriError:
        raise
    except Exception as error:  # of any kind: tasks are code and data of others
        if _passed_through_us(error):
            raise
        raise EngineError(
            f"lm-eval failed on {', '.join(options.tasks)}: {one_line(error)[:300]}; check the "
            "tasks and their data with lm-eval itself"
        ) from error


def _passed_through_us(error: Exception) -> bool:
    """Whether it came from our model, which lm-eval calls: then it is no fault of lm-eval's."""
    names = (frame.f_globals["__name__"] for frame, _ in walk_tb(error.__traceback__))
    return "kri_core.running.lm_eval_model" in names
