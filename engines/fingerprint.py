"""A target's fingerprint: targets with the same one answer with the same text (in batch-invariant mode, exactly)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from engines.lent import lent
from engines.models import weight_files

_SAMPLE_BYTES = 4096
_FILE_SAMPLES = 64
# Written by whoever saved the model; irrelevant to what it computes.
_VOLATILE = {"_name_or_path", "_model_name_or_path", "transformers_version", "architectures"}


def weights_digest(folder: Path) -> str:
    """A hash over the model's configuration, the safetensors headers, and samples of every tensor.

    Of each tensor the first, middle and last 4 KiB are read: cheap for any size, and any training or merging changes
    them. Weights patched elsewhere by hand would go unseen.
    """
    digest = hashlib.sha256()
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in _VOLATILE}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    if (given := lent(folder)) is not None:
        from engines.torch.lent_model import samples

        for sample in samples(given):
            digest.update(sample)
    for file in weight_files(folder, allow_pickle_weights=True):
        with file.open("rb") as stream:
            if file.suffix == ".safetensors":
                size = int.from_bytes(stream.read(8), "little")
                header = stream.read(size)
                digest.update(header)
                tensors = [
                    entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__"
                ]
                spans = [(8 + size + begin, 8 + size + end) for begin, end in tensors]
            else:
                length = file.stat().st_size
                spans = [(length * i // _FILE_SAMPLES, length * (i + 1) // _FILE_SAMPLES) for i in range(_FILE_SAMPLES)]
            for begin, end in spans:
                for at in (begin, (begin + end) // 2, max(begin, end - _SAMPLE_BYTES)):
                    stream.seek(at)
                    digest.update(stream.read(min(_SAMPLE_BYTES, end - at)))
    return digest.hexdigest()


def fingerprint(folder: Path, *, engine: str, dtype: str, device: str, numerics: str) -> str:
    """32 hexadecimal digits over weights and all that decides a logit's bits.

    `engine` carries its version ("torch-2.13.0"), `device` is the kind ("cpu", or the GPU's name), `numerics` the
    mode's own part (threads, instruction set, batch-invariant or not).
    """
    parts = [weights_digest(folder), engine, dtype, device, numerics]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
