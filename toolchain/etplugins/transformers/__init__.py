"""Models of Hugging Face's transformers: `model.huggingface` of a manifest, its tasks, caches and runners."""
