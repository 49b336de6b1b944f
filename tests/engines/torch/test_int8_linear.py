"""Products with int8 weights are right on processors that have no instruction for them too."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engines.torch.int8_linear import has_int8
from testing.patience import PATIENCE

# FBGEMM is told to do without VNNI, in a process of its own: it looks at the processor once.
AS_ON_AVX2 = """
import ctypes, torch
force = ctypes.CDLL(torch.__file__.replace("__init__.py", "lib/libtorch_cpu.so"))
force._ZN6fbgemm14fbgemmForceIsaENS_10inst_set_tE(ctypes.c_int(1))
torch.backends.quantized.engine = "fbgemm"
"""
WORST = """
import torch
from engines.torch.int8_linear import Int8Linear, product, saturates
torch.manual_seed(1)
worst = 0.0
for rows in (torch.randint(-127, 128, (64, 576), dtype=torch.int8), torch.full((64, 576), 127, dtype=torch.int8)):
    layer = Int8Linear(rows, torch.full((64,), 0.01))
    for values in (torch.rand(3, 576), torch.cat([torch.ones(1, 300), torch.rand(1, 276)], 1)):
        right = values @ layer.weight.T
        worst = max(worst, float((product(layer.packed, values) - right).norm() / right.norm()))
print(saturates(), worst)
"""


def worst(*parts: str) -> tuple[str, float]:
    done = subprocess.run([sys.executable, "-c", "".join(parts)], capture_output=True, text=True, timeout=PATIENCE)
    if "fbgemmForceIsa" in done.stderr:
        pytest.skip("this build of torch doesn't let FBGEMM's instructions be chosen")
    assert done.returncode == 0, done.stderr
    saturates, error = done.stdout.split()
    return saturates, float(error)


@pytest.mark.skipif(not has_int8(), reason="this build of torch has no int8 products")
def test_on_this_processor() -> None:
    assert worst(WORST)[1] < 0.01


def test_without_vnni() -> None:
    saturates, error = worst(AS_ON_AVX2, WORST)
    assert saturates == "True"
    assert error < 0.01
