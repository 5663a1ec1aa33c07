"""Facts about families of models that no configuration holds. Each row is the result of a trial."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """The models of a `model_type`.

    Attributes:
        towers: The `model_type` of each tower for images that `image-text-to-text` supports, the default of
            transformers first. A tower is missing if it was not tried, or if its prompt has tokens inside an image.
        no_images: Why `image-text-to-text` does not take the family, if the cause is known.
        looks_ahead: Whether the tokens of an image attend to each other in both directions.
        drops_black_images: Whether `get_image_features` drops images with only zeros, so that the number of tokens
            would depend on values.
        writes: The task of its encoder-decoder models, which a first manifest names.
        reads_mask: Whether layers beside attention read the mask of a call, and take its last columns for the tokens of
            the call, as in a cache that has no more than its tokens.
        reserved_positions: How many entries its table of positions has before that of the first token.
    """

    towers: tuple[str, ...] = ()
    no_images: str = ""
    looks_ahead: bool = False
    drops_black_images: bool = False
    writes: str | None = None
    reads_mask: bool = False
    reserved_positions: int = 0


_TILES = "an image becomes a number of tiles that follows from its size, with tokens between them"
_SEQ2SEQ, _SPEECH = Family(writes="seq2seq"), Family(writes="speech-to-text")
_PADDED = Family(reserved_positions=2)  # the first positions are those of padding

FAMILIES = {
    # Images and text.
    "gemma3": Family(("siglip_vision_model",), looks_ahead=True),
    "glm4v": Family(("glm4v_vision",)),
    "idefics3": Family(("idefics3_vision",), drops_black_images=True),
    "internvl": Family(("internvl_vision",)),
    "lfm2_vl": Family(("siglip2_vision_model",)),
    "llava": Family(("clip_vision_model", "siglip_vision_model")),
    "llava_next": Family(no_images=_TILES),
    "llava_onevision": Family(no_images=_TILES),
    "mllama": Family(no_images="its decoder attends to images apart from the text (cross-attention)"),
    "paligemma": Family(
        no_images="a prompt attends to its image and to itself in both directions, and the runner gives it in parts"
    ),
    "qwen2_5_vl": Family(("qwen2_5_vl_vision",)),
    "qwen2_vl": Family(("qwen2_vl_vision",)),
    "qwen3_5": Family(("qwen3_5_vision",)),
    "qwen3_vl": Family(("qwen3_vl_vision",)),
    "qwen3_vl_moe": Family(("qwen3_vl_moe_vision",)),
    "smolvlm": Family(("smolvlm_vision",), drops_black_images=True),
    # An encoder, and a decoder of text.
    **dict.fromkeys(("bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5"), _SEQ2SEQ),
    **dict.fromkeys(("moonshine", "moonshine_streaming", "whisper"), _SPEECH),
    "nllb-moe": Family(writes="seq2seq", reads_mask=True),  # its router takes it for a mask of padding
    # Encoders of text.
    **dict.fromkeys(("camembert", "mpnet", "roberta", "xlm-roberta"), _PADDED),
}


def family(kind: object) -> Family:
    """The family of a `model_type`. If the table lacks it, all values are defaults."""
    return FAMILIES.get(str(kind), Family())


def refusal(kind: str, tower: str | None) -> tuple[str, str] | None:
    """Why `image-text-to-text` does not take a model, and which models it takes. None if it takes the model.

    Args:
        kind: The `model_type` of the model.
        tower: That of its tower for images; None for the default of transformers.
    """
    found = family(kind)
    if not found.towers:
        why = f": {found.no_images}" if found.no_images else ""
        known = ", ".join(name for name, each in FAMILIES.items() if each.towers)
        return f"`{kind}` is not among the models for images that this task knows{why}", known
    if tower is None or tower in found.towers:
        return None
    return f"the tower `{tower}` of `{kind}` is not among those that this task knows", ", ".join(found.towers)
