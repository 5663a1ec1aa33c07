"""LoRA adapters, as PEFT writes them: methods that compute with a checkpoint and one of several adapters."""
