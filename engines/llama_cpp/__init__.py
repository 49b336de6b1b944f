"""The engine on llama.cpp: GGUF files as they are, quantised, on whatever llama-cpp-python was built for."""
