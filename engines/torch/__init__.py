"""The torch engine: Hugging Face decoder-only models on CPU or CUDA."""
