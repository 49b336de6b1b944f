"""Before any test imports torch: numerics that let tests compare bits, and threads that share a small machine."""

from engines.torch.environment import prepare_environment

prepare_environment(threads=2, batch_invariant=True)
