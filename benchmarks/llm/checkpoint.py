"""Writes a checkpoint as a hub delivers it: bfloat16, configuration and tokenizer. Its weights are random.

    python benchmarks/llm/checkpoint.py CONFIG OUT

CONFIG is a JSON file with the keys of the configuration.
"""

import json
import sys
from pathlib import Path

import tokenizers
import torch
import transformers


def tokenizer(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of words: token 5 is the word `w5`. Token 0 ends a text."""
    words = {"</s>": 0, **{f"w{number}": number for number in range(1, vocab_size)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w1"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")


def main() -> None:
    """Writes the folder. The same configuration gives the same weights."""
    config = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    torch.manual_seed(0)
    made = transformers.AutoConfig.for_model(**config)
    transformers.AutoModelForCausalLM.from_config(made, dtype=torch.bfloat16).save_pretrained(sys.argv[2])
    tokenizer(config["vocab_size"]).save_pretrained(sys.argv[2])


if __name__ == "__main__":
    main()
