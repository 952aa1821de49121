"""One device's part of a tensor-parallel model, as a smaller model that a single device can run.

Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053. Heads, the width between the feed-forward
linears, and the vocabulary are divided; what flows from layer to layer is whole on every device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError
from camshaft.text.byte_tokenizer import byte_tokenizer

if TYPE_CHECKING:
    from camshaft import Recipe

_HEADS, _KV_HEADS = "num_attention_heads", "num_key_value_heads"
_WIDTH, _VOCAB, _HIDDEN = "intermediate_size", "vocab_size", "hidden_size"


def sharded(recipe: Recipe, ranks: int) -> list[str]:
    """Return what turns a recipe into one for the part of one of `ranks` devices, as `--set` does.

    Raises:
        CamshaftError: The recipe names no shape, or one that so many devices cannot divide.
    """
    config = recipe.model.config
    if config is None:
        raise CamshaftError(
            "engine tune --tensor-parallel measures one device's part of a model with random "
            "weights, so it needs a recipe with `model.config`; a config.json has what to write"
        )
    missing = [name for name in (_HEADS, _WIDTH, _VOCAB, _HIDDEN) if name not in config]
    if missing:
        raise CamshaftError(f"model.config lacks {', '.join(missing)}; add what the model has")
    heads, width = int(config[_HEADS]), int(config[_WIDTH])
    kv_heads = int(config.get(_KV_HEADS, heads))
    for name, value in ((_HEADS, heads), (_WIDTH, width)):
        if value % ranks:
            raise CamshaftError(f"{ranks} devices cannot share model.config.{name}: {value}")
    if kv_heads % ranks and ranks % kv_heads:
        raise CamshaftError(f"{ranks} devices cannot share model.config.{_KV_HEADS}: {kv_heads}")
    part = {
        _HEADS: heads // ranks,
        _KV_HEADS: max(1, kv_heads // ranks),  # if there are too few, devices have copies
        "head_dim": int(config.get("head_dim") or int(config[_HIDDEN]) // heads),
        _WIDTH: width // ranks,
        _VOCAB: max(-(-int(config[_VOCAB]) // ranks), byte_tokenizer().vocab_size),
        # no token is chosen for its meaning, and these may be beyond the part
        **{name: 0 for name in config if name.endswith("_token_id")},
    }
    return [f"model.config.{name}={value}" for name, value in part.items()]
