"""`kri-core cartridge`: build, inspect, verify, convert."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from attrs import asdict

from kri_core.cli.options import FILE, json_flag, model_options
from kri_core.cli.output import print_fields, print_json, size
from kri_core.cli.progress import progress
from kri_core.errors import ConfigError

if TYPE_CHECKING:
    from kri_core.artifacts import CartridgeHeader

BLOCK_SIZE = 16
LARGEST = 2**31 - 1  # tokens; torch counts no further than 2**63, also when it multiplies
BLOCK_SIZES = click.IntRange(1, LARGEST)
block_size_option = click.option(
    "--block-size", type=BLOCK_SIZES, default=BLOCK_SIZE, show_default=True
)


@click.group()
def cartridge() -> None:
    """A document's KV cache in a file."""


@cartridge.command()
@model_options("A hub id, a path, or smollm2-135m.", required=True)
@click.option("--text", "text_path", type=FILE, required=True, help="A UTF-8 text file, or -.")
@click.option("--out", type=FILE, required=True, help="A .safetensors or .pt file.")
@block_size_option
@click.option("--max-tokens", type=click.IntRange(min=1), help="Keep the first so many tokens.")
@click.option("--chat-template", is_flag=True, help="The document opens the user's turn.")
def build(
    model_name: str,
    revision: str | None,
    dtype: str,
    device: str,
    text_path: Path,
    out: Path,
    block_size: int,
    max_tokens: int | None,
    chat_template: bool,
) -> None:
    """Run a model over a document and keep its KV cache."""
    text = _read_text(text_path)
    from kri_core.artifacts import check_target, write_cartridge
    from kri_core.cli.loading import load
    from kri_core.substrate.hf import build_cartridge

    check_target(out)
    model = load(model_name, revision, dtype, device)
    with progress() as report:
        made = build_cartridge(
            model,
            text,
            cart_id=out.stem,
            block_size=block_size,
            max_tokens=max_tokens,
            chat_template=chat_template,
            progress=partial(report, "prefill"),
        )
    write_cartridge(made, out)
    layout = made.layout
    click.echo(
        f"{out}: {layout.num_tokens} tokens, {layout.num_blocks} blocks of {layout.block_size} and "
        f"a tail of {len(layout.tail)}, {size(out.stat().st_size)}",
        err=True,
    )
    click.echo(out)


def _read_text(path: Path) -> str:
    try:
        piped = str(path) == "-"
        data = sys.stdin.buffer.read() if piped else path.read_bytes()
        text = data.decode()
    except OSError as error:
        raise ConfigError(f"--text {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--text {path} is not UTF-8 (byte {error.start}); convert it, as with iconv -t UTF-8"
        ) from error
    if not text.strip():
        raise ConfigError(f"--text {path} is empty; give a document")
    return text


@cartridge.command()
@click.argument("path", type=FILE)
@json_flag
def inspect(path: Path, as_json: bool) -> None:
    """Show what a cartridge file says of itself; its KV is not read."""
    from kri_core.artifacts import read_cartridge_header

    _show(path, read_cartridge_header(path), as_json)


@cartridge.command()
@click.argument("path", type=FILE)
@json_flag
def verify(path: Path, as_json: bool) -> None:
    """Read every byte of a cartridge, or an overlay of one, and compare it with its checksums."""
    from kri_core.artifacts import CartridgeHeader, is_overlay, verify_cartridge, verify_overlay

    if is_overlay(path):
        overlay = verify_overlay(path).header
        if as_json:
            print_json({"path": str(path), **asdict(overlay), "verified": True})
        else:
            click.echo(f"{path}: ok, {overlay.stack}, sha256 {overlay.sha256}")
        return
    header = CartridgeHeader.of(verify_cartridge(path))
    if as_json:
        print_json(_record(path, header) | {"verified": True})
    else:
        click.echo(f"{path}: ok, {size(header.num_bytes)} of KV, sha256 {header.sha256}")


@cartridge.command()
@click.argument("source", type=FILE)
@click.argument("target", type=FILE)
@model_options("For a foreign cartridge: the model it was made for.")
@click.option("--block-size", type=BLOCK_SIZES, help="For a foreign cartridge.")
def convert(
    source: Path,
    target: Path,
    model_name: str | None,
    revision: str | None,
    dtype: str,
    device: str,
    block_size: int | None,
) -> None:
    """Rewrite SOURCE as TARGET (.safetensors or .pt), or import another tool's cartridge.

    Read are: a TrainableCache dict, a list of (k, v) tuples, a list of {"k", "v"}; token ids may
    lie beside it in prefix_token_ids.json.
    """
    from kri_core.artifacts import convert_cartridge

    identity = None
    if model_name is not None:
        from kri_core.cli.loading import load

        identity = load(model_name, revision, dtype, device).identity
    convert_cartridge(source, target, block_size, identity)
    click.echo(target)


def _show(path: Path, header: CartridgeHeader, as_json: bool) -> None:
    record = _record(path, header)
    if as_json:
        print_json(record)
        return
    model = record.pop("model")
    assert isinstance(model, dict)  # noqa: S101 - built below
    print_fields(record | {f"model.{name}": value for name, value in model.items()})


def _record(path: Path, header: CartridgeHeader) -> dict[str, object]:
    layout = header.layout
    return {
        "path": str(path),
        "cart_id": path.stem,
        **asdict(layout),
        "num_blocks": layout.num_blocks,
        "tail_tokens": len(layout.tail),
        "dtype": header.dtype,
        "kv_bytes": header.num_bytes,
        "block_bytes": header.block_bytes,
        "trained": header.trained,
        "created_at": header.created_at,
        "format_version": header.format_version,
        "sha256": header.sha256,
        "prefix_hash": header.prefix_hash,
        "model": asdict(header.model) | {"fingerprint": header.model.fingerprint},
    }
