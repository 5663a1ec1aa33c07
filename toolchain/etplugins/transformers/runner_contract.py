"""The constant methods that ExecuTorch's runners call before they run a program.

They give a runner sizes and token ids. If one is missing, the runner assumes a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch

from etbuild.errors import DocumentPath, InputError, Problem, did_you_mean
from etbuild.inputs.checkpoints import read_json
from etbuild.inputs.given import Given
from etbuild.plan.kinds import Names
from etbuild.plan.parts import Dim, ExportMethod, ModelExample, TensorExample
from etbuild.plan.step_plans import ExportPlan
from etplugins.transformers.parts import DecoderCache, HuggingFace, settings_of
from etplugins.transformers.tasks import DRAFT

_PATH: DocumentPath = ("runner",)


def constants(export_plan: ExportPlan, module: Any, inputs: Given) -> dict[str, object]:
    """The constants of the runner's contract, by name, or those of a decoder whose caller drafts or holds the cache.
    Empty for other programs without a runner, and for a module from a factory.

    Args:
        export_plan: The export plan.
        module: The model of transformers.
        inputs: The declared inputs, which may contain the settings for generating text.

    Raises:
        InputError: The ids of the tokens that end a text are unknown, or a token is not in the vocabulary.
    """
    model, runner = settings_of(export_plan.model), export_plan.runner
    if model is not None and (model.has_external_cache or (runner is None and model.draft_layers is not None)):
        return _of_application(export_plan, model, module, inputs)
    if runner is None or model is None or model.cache is None:
        return {}
    from etplugins.transformers import encoder_decoder  # imports transformers

    config = encoder_decoder.decoder_config(module.config)
    settings = _generation_config(model, inputs)
    decoder = "forward" if runner.contract == "executorch-llm/v1" else "text_decoder"
    if runner.contract != "executorch-llm/v1":
        _check_dtype(model, module)
    if runner.contract == "executorch-multimodal/v1":
        _check_embedding(export_plan.methods)
    lengths = _lengths(export_plan.methods[decoder], ("methods", decoder, "dynamic_shapes"), model.cache)
    for name, method in export_plan.methods.items():
        path: DocumentPath = ("methods", name, "dynamic_shapes")
        if method.adapter is not None and _lengths(method, path, model.cache) != lengths:
            message = (
                f"the runner reads from the program how many tokens `{decoder}` takes, and calls `{name}` with as many"
            )
            raise InputError.at(path, message, f"give `{name}` the inputs of `{decoder}`")
    values = {
        **lengths,
        **_ids(settings, (config, module.config), runner.said),
        "get_n_layers": config.num_hidden_layers,
        "get_vocab_size": config.vocab_size,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": model.attention == "custom_sdpa",
    }
    if "get_eos_ids" not in {*values, *runner.said}:
        hint = "add `generation_config: generation_config.json` to the model, or `get_eos_ids` to `constant_methods`"
        raise InputError.at(_PATH, "nothing says which tokens end a text", hint)
    start = "decoder_start_token_id"
    if runner.contract == "executorch-asr/v1" and start not in {*values, *runner.said}:
        hint = f"add `generation_config: generation_config.json` to the model, or `{start}` to `constant_methods`"
        raise InputError.at(_PATH, "nothing says which token a text of the decoder begins with", hint)
    return {name: value for name, value in sorted(values.items()) if name not in runner.said}


def _of_application(export_plan: ExportPlan, model: HuggingFace, module: Any, inputs: Given) -> dict[str, object]:
    """The constants of a decoder whose caller holds the cache or drafts. The ids of tokens are there as far as they are
    known."""
    from etplugins.transformers import external_cache  # imports transformers

    assert model.cache is not None, "the manifest is checked"
    config = module.config.get_text_config(decoder=True)
    ids = _ids(_generation_config(model, inputs), (config, module.config), ())
    drafts = [name for name, method in export_plan.methods.items() if method.entry == DRAFT]
    names = external_cache.constants(module, drafts) if model.has_external_cache else {}
    sizes = {"get_max_context_len": model.cache.max_length, "get_vocab_size": config.vocab_size}
    return dict(sorted({**ids, **sizes, **names}.items()))


def _check_dtype(model: HuggingFace, module: Any) -> None:
    """Refuses an encoder that takes images or features in float16: the runners do not convert inputs to it."""
    if model.task != "seq2seq" and module.dtype == torch.float16:
        message = "the runner gives images and features in float32 or bfloat16, and the model is in float16"
        raise InputError.at(("model", "dtype"), message, "write `dtype: float32`, or leave out `runner`")


def _check_embedding(methods: Mapping[str, ExportMethod]) -> None:
    """Refuses a `token_embedding` that takes fewer lengths than `text_decoder`."""
    (longest, least, step), (longest_text, _, _) = _range(methods["token_embedding"]), _range(methods["text_decoder"])
    if longest < longest_text or least > 1 or step > 1:
        message = (
            f"`token_embedding` does not take every text that `text_decoder` takes, from 1 to {longest_text} tokens"
        )
        hint = "leave out its inputs: the task writes them"
        raise InputError.at(("methods", "token_embedding"), message, hint)


def _lengths(decoder: ExportMethod, path: DocumentPath, cache: DecoderCache) -> dict[str, object]:
    """The constants about the lengths of prompts, by name. Refuses a decoder that takes only calls of one length above
    1, no call of one token, or only multiples of a length."""
    longest, least, step = _range(decoder)
    if step > 1:
        message = f"the runner gives any number of tokens to `{path[1]}`, which takes multiples of {step}"
        raise InputError.at(path, message, "leave out `multiple_of`")
    if least > 1:
        message = f"the runner decodes one token in each call, and `{path[1]}` takes {least} or more"
        raise InputError.at(path, message, f"write {{dim: seq, min: 1, max: {max(longest, cache.longest_call)}}}")
    return {
        "enable_dynamic_shape": longest > 1,
        "get_max_context_len": cache.max_length,
        "get_max_seq_len": longest if longest > 1 else cache.max_length,  # token by token, a prompt may fill the cache
    }


def _range(decoder: ExportMethod) -> tuple[int, int, int]:
    """The largest and the smallest number of tokens in a call of the method, and the number that divides all lengths.

    The first input of the method has the shape [1, seq] or [1, seq, hidden].
    """
    shapes, tokens = decoder.dynamic_shapes[0], decoder.example_inputs[0]
    dim = shapes[1] if isinstance(shapes, tuple) else None
    if isinstance(dim, Dim) and dim.max is not None:
        return dim.max, dim.min, dim.multiple_of
    length = tokens.shape[1] if isinstance(tokens, TensorExample) else cast("ModelExample", tokens).length
    assert length is not None  # a decoder's first input has a length: it is tokens or embeddings
    return length, length, 1


def _ids(settings: dict[str, object], configs: tuple[Any, ...], overridden: Names) -> dict[str, object]:
    """The ids of the tokens that begin and end a text, as far as they are known.

    Args:
        settings: The settings for generating text.
        configs: The configurations of the text model and of the whole model, which may be the same.
        overridden: The names of constants that the manifest sets itself.
    """
    ids_by_name: dict[str, object] = {}
    vocabulary = configs[0].vocab_size
    keys = {"get_bos_id": "bos_token_id", "get_eos_ids": "eos_token_id"}
    if configs[-1].is_encoder_decoder:  # only the configuration of the whole model has keys that begin with `decoder_`
        keys["decoder_start_token_id"] = "decoder_start_token_id"
        configs = configs[-1:]
    for name, key in ((name, key) for name, key in keys.items() if name not in overridden):
        values = [settings.get(key), *(getattr(config, key, None) for config in configs)]
        value: Any = next((value for value in values if value is not None), [])
        ids = value if isinstance(value, list) else [value]
        invalid = [token for token in ids if type(token) is not int or not 0 <= token < vocabulary]
        if invalid:
            message = f"`{key}` is {invalid[0]}, which is not in the vocabulary of {vocabulary} tokens"
            setting = "config" if settings.get(key) is None else "generation_config"
            raise InputError.at(("model", "huggingface", setting), message, f"set `{name}` in `constant_methods`")
        if ids:
            ids_by_name[name] = ids if name == "get_eos_ids" else ids[0]
    return ids_by_name


def _generation_config(model: HuggingFace, inputs: Given) -> dict[str, object]:
    """The settings for generating text. Empty if the manifest names none."""
    name, path = model.generation_config, ("model", "huggingface", "generation_config")
    if not isinstance(name, str):
        _check_keys(name or {}, path)
        return name or {}
    content = read_json(name, path, inputs)
    if not isinstance(content, dict):
        raise InputError.at(path, f"`{name}` is not a generation configuration: it is not a JSON object")
    return content


def _check_keys(settings: dict[str, object], path: DocumentPath) -> None:
    from transformers import GenerationConfig

    defaults = GenerationConfig().to_dict()
    problems = [
        Problem(f"`GenerationConfig` has no `{key}`", (*path, key), did_you_mean(key, defaults), at_key=True)
        for key in settings
        if key not in defaults
    ]
    InputError.raise_if(problems)
