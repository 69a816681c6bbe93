"""What an attention layer mixes its heads by."""

from __future__ import annotations

from torch import Tensor, nn

from kri_core.errors import EngineError
from kri_core.substrate.hf.model import HfModel

NAMES = ("o_proj", "out_proj", "dense")  # Llama, Qwen; GPT-J; Phi, GPT-NeoX


def output_projection(model: HfModel, layer: int) -> Tensor:
    """The layer's weights without its bias, float32 [q_head, head_dim, dim] on the CPU."""
    anatomy = model.anatomy
    kind = type(anatomy.rotary.attention)
    attention = next(part for part in anatomy.layers[layer].modules() if isinstance(part, kind))
    found = next((getattr(attention, name) for name in NAMES if hasattr(attention, name)), None)
    width = anatomy.num_q_heads * anatomy.head_dim
    if not isinstance(found, nn.Linear) or found.in_features != width:
        raise EngineError(
            f"{kind.__name__} has no linear output projection of {width} inputs under "
            f"{', '.join(NAMES)}; use a scorer that does not read it"
        )
    weight = found.weight.detach().float().cpu()  # [dim, q_head · head_dim]
    return weight.T.reshape(anatomy.num_q_heads, anatomy.head_dim, -1)
