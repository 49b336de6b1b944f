"""What the memory for keys and values costs."""

from __future__ import annotations

import psutil
import pytest
import torch

from engines.torch.kv_cache import CacheShape, KeyValueCache, Places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_is_taken_up_only_where_it_is_written(dtype: torch.dtype) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    cache = KeyValueCache(CacheShape.uniform(4, 2, 64, 64), 64, 4096, dtype, torch.device("cpu"))
    reserved = cache.keys.nbytes + cache.values.nbytes
    cache.write(0, Places(torch.arange(8), None), torch.ones(8, 2, 64, dtype=dtype), torch.ones(8, 2, 64, dtype=dtype))
    assert process.memory_info().rss - before < reserved / 4
    keys, values = cache.read(0, 0, 0, 10)
    assert keys[0, 0, :, 0].tolist() == values[0, 1, :, 5].tolist() == [1.0] * 8 + [0.0] * 2
