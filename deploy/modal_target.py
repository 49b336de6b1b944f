"""The target worker on a cloud GPU at Modal; gateway and draft stay at home (docs/deploy.md).

modal secret create tandem-worker TANDEM_WORKER_TOKEN=$(openssl rand -hex 32)
modal deploy deploy/modal_target.py
"""

import os
import subprocess
from pathlib import Path

import modal

MODEL = os.environ.get("TANDEM_TARGET_MODEL", "Qwen/Qwen2.5-3B-Instruct")
GPU = os.environ.get("TANDEM_MODAL_GPU", "L4")
PORT = 8002
SOURCE = Path(__file__).resolve().parent.parent
CACHE = "/cache"
IGNORED = [".git", ".venv*", "**/__pycache__", "tests", "benchmarks", "docs"]

image = (
    modal.Image.debian_slim(python_version="3.11")
    .add_local_dir(SOURCE, "/src", copy=True, ignore=IGNORED)
    .run_commands("pip install '/src[worker,grammar]'")
    .env({"HF_HOME": f"{CACHE}/huggingface", "XDG_CACHE_HOME": CACHE, "TANDEM_TARGET_MODEL": MODEL})
)
app = modal.App("tandem-target")
weights = modal.Volume.from_name("tandem-weights", create_if_missing=True)


@app.function(
    image=image,
    gpu=GPU,
    volumes={CACHE: weights},
    secrets=[modal.Secret.from_name("tandem-worker", required_keys=["TANDEM_WORKER_TOKEN"])],
    max_containers=1,  # sessions are one worker's memory: a second container would know nothing of them
    scaledown_window=300,
    timeout=86_400,
)
@modal.concurrent(max_inputs=100)
@modal.web_server(PORT, startup_timeout=1800)
def target() -> None:
    """Serves once the port is open; /ready says when the weights are loaded."""
    subprocess.Popen(["tandem", "target", "--host", "0.0.0.0", "--port", str(PORT)])
