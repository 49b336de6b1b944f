"""The settings of the two workers. The command line adds where they listen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FilePath, SecretStr, model_validator

from basics.names import LOOKUP, MAX_CANDIDATES, MAX_DRAFT_TOKENS, OnOffAuto, Strategy
from config.urls import worker_url
from config.vllm_arguments import check_vllm_arguments

LONGEST_DEFAULT_CONTEXT = 8192
"""Slots are allocated whole: without a setting, a model of 128k tokens would take all the memory there is."""
WorkerUrl = Annotated[str, Field(pattern=r"^https?://[^/?#]+$"), AfterValidator(worker_url)]
EngineName = Literal["torch", "vllm", "llama_cpp"]
"""The engines in engines/table.py."""
KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
OtherVocabulary = Literal["auto", "shared_ids", "shared_text", "refuse"]
DraftPrompt = Literal["auto", "target", "own"]
Milliseconds = Annotated[int, Field(ge=0, le=3_600_000)]


_LLAMA_CPP_SETTINGS = ("gpu_layers", "cache_type_k", "cache_type_v", "flash_attn", "mmap")


class WorkerConfig(BaseModel):
    """Settings that both workers have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        default="SmolLM2-135M-Instruct",
        min_length=1,
        description="the bundled name, a Hugging Face id, a local folder or a GGUF file",
    )
    engine: Literal["auto"] | EngineName = Field(
        default="auto",
        description="what runs the model (docs/vllm.md, docs/llama_cpp.md); auto: llama_cpp for a GGUF file, if "
        "installed and neither device nor dtype is set, else torch",
    )
    vllm_args: dict[str, Any] = Field(
        default_factory=dict, description="vLLM's own engine arguments by name, passed through to it"
    )
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="of weights and keys and values; auto: float32 on CPU, the model's own elsewhere"
    )
    threads: int | None = Field(default=None, ge=1, le=1024, description="CPU threads of the model; none: all cores")
    batch_invariant: bool | None = Field(
        default=None,
        description="the same bits for a token's logits whatever batch or chunk computed them; none: on engine "
        "llama_cpp where it holds, else not",
    )
    gpu_layers: int | None = Field(
        default=None, ge=0, le=10_000, description="layers that engine llama_cpp keeps on a GPU; none: all"
    )
    cache_type_k: KvType = Field(
        default="f16", description="of keys, on engine llama_cpp (with batch_invariant f16 becomes bf16 on x86)"
    )
    cache_type_v: KvType = Field(
        default="f16", description="of values, on engine llama_cpp (with batch_invariant f16 becomes bf16, but for x86)"
    )
    flash_attn: Literal["auto", "on", "off"] = Field(
        default="auto", description="engine llama_cpp's fused attention; batch_invariant needs it"
    )
    mmap: bool = Field(default=True, description="engine llama_cpp maps the model's file instead of reading it whole")
    slots: int = Field(default=8, ge=1, le=1024, description="sessions whose keys and values are held at once")
    memory_gb: float | None = Field(
        default=None,
        gt=0.0,
        le=1_048_576,
        description="memory for keys and values, in GiB; given, it sets the number of slots",
    )
    context_length: int | None = Field(
        default=None, ge=16, le=1_048_576, description="tokens a slot holds; none: the model's own, at most 8192"
    )
    prefill_chunk_tokens: int = Field(
        default=256, ge=16, le=16_384, description="most prompt tokens a forward pass reads"
    )
    max_queue: int = Field(default=64, ge=1, le=65_536, description="requests that may wait for a slot; more get a 429")
    slot_hold_ms: Milliseconds = Field(
        default=2_000, description="how long a session that was just served keeps its slot when others want it"
    )
    max_sessions: int = Field(default=1_024, ge=1, le=1_048_576, description="sessions whose token ids are remembered")
    max_session_tokens: int = Field(
        default=4_194_304, ge=1_024, le=2**40, description="token ids remembered for all sessions together"
    )
    session_idle_ms: Milliseconds = Field(
        default=300_000, ge=1, description="how long a session that nobody uses or deletes is remembered"
    )
    stall_timeout_ms: Milliseconds = Field(
        default=30_000, ge=1, description="how long a reader of a stream may leave it unread before it is stopped"
    )
    body_limit_bytes: int = Field(
        default=8_388_608, ge=1_024, le=2**31, description="largest request body; a larger one gets a 413"
    )
    body_timeout_ms: Milliseconds = Field(
        default=30_000, ge=1, description="how long a request body may take to arrive"
    )
    drain_timeout_ms: Milliseconds = Field(default=10_000, description="how long running work may take at shutdown")
    worker_token: SecretStr | None = Field(default=None, description="bearer token that callers of /v1 must send")
    allow_pickle_weights: bool = Field(
        default=False, description="load weights that torch pickled, which can run code, if a model has no others"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="what is logged")
    log_format: Literal["console", "json"] = Field(default="console", description="lines for people, or JSON objects")

    @model_validator(mode="after")
    def _settings_of_the_engine(self) -> Self:
        if self.vllm_args and self.engine != "vllm":
            raise ValueError("vllm_args: needs engine vllm")
        if self.engine not in ("llama_cpp", "auto"):
            for name in _LLAMA_CPP_SETTINGS:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name}: needs engine llama_cpp")
        if self.engine == "llama_cpp":
            if self.device not in ("auto", "cpu"):
                raise ValueError("device: llama.cpp uses the GPU it was built for; see gpu_layers")
            if self.dtype != "auto":
                raise ValueError("dtype: a GGUF file has its own; see cache_type_k and cache_type_v")
        if self.engine == "vllm":
            if self.batch_invariant:
                raise ValueError("batch_invariant: vLLM's own is VLLM_BATCH_INVARIANT=1")
            if self.device != "auto":
                raise ValueError(
                    "device: vLLM takes what CUDA_VISIBLE_DEVICES shows it, or the CPU if it is built for that"
                )
            check_vllm_arguments(self.vllm_args, self.dtype)
        return self


class TargetWorkerConfig(WorkerConfig):
    """Settings of a target worker."""

    strategy: Strategy = Field(
        default="deterministic", description="what the worker recommends to gateways; each request names its own"
    )
    verbose: bool = Field(default=False, description="log the decision on every drafted token, its id included")
    cuda_graphs: bool = Field(
        default=True, description="on CUDA, the torch engine launches a pass of up to 512 tokens as one graph"
    )
    max_candidates: int = Field(
        default=MAX_CANDIDATES, ge=1, le=MAX_CANDIDATES, description="most candidates a verification takes"
    )
    gather_ms: Milliseconds | None = Field(
        default=None,
        description="the longest that a token of plain decoding is held, to be sent with those after it; none: 50 on "
        "engine llama_cpp, 0 (each is sent by itself) elsewhere",
    )
    draft_workers: list[WorkerUrl] = Field(
        default=[], max_length=16, description="draft workers that engine vllm asks itself, the first that answers"
    )
    draft_workers_ca: FilePath | None = Field(default=None, description="certificates that vouch for them over https")
    most_drafted: int = Field(
        default=5,
        ge=1,
        le=MAX_DRAFT_TOKENS,
        description="draft tokens a step that engine vllm can verify for a request",
    )
    draft_deadline_ms: float | None = Field(
        default=None,
        gt=0.0,
        le=60_000.0,
        description="how long a step waits for drafts; none: half a measured step. Raise it if drafts come later",
    )
    lookahead: OnOffAuto = Field(
        default="off",
        description="have draft_workers prepare the next drafts while vLLM's step runs; auto: where steps with it "
        "bring more tokens a second",
    )

    @model_validator(mode="after")
    def _drafts_for_vllm(self) -> Self:
        if self.draft_workers and self.engine != "vllm":
            raise ValueError("draft_workers: needs engine vllm; other targets leave the rounds to the gateway")
        if not self.cuda_graphs and self.engine in ("vllm", "llama_cpp"):
            raise ValueError("cuda_graphs: needs engine torch; vLLM's own is enforce_eager in vllm_args")
        if self.gather_ms is not None and self.engine == "vllm":
            raise ValueError("gather_ms: vLLM's own is stream_interval, in tokens")
        if self.strategy == "threshold" and self.engine == "vllm":
            raise ValueError("strategy: engine vllm cannot do threshold (docs/vllm.md)")
        return self


class DraftWorkerConfig(WorkerConfig):
    """Settings of a draft worker."""

    model: str = Field(
        default=LOOKUP,
        min_length=1,
        description="lookup (no model), the bundled name, a Hugging Face id, a local folder or a GGUF file",
    )
    q_top_k: int = Field(
        default=64, ge=1, le=4_096, description="tokens in the distribution that drafts for `probabilistic` come from"
    )
    chains: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="draft a candidate's tokens without the loop between them, on CUDA as CUDA graphs; auto: on CUDA, "
        "and with a trained draft in int8 (with other models it reads prompts slowly on a CPU)",
    )
    compile: bool = Field(
        default=True, description="on CUDA, have torch.compile fuse the small kernels of what `chains` runs"
    )
    lookup_min_ngram: int = Field(default=2, ge=1, le=64, description="shortest suffix that lookup looks for")
    lookup_max_ngram: int = Field(default=8, ge=1, le=64, description="longest suffix that lookup looks for")
    grammar_model: str | None = Field(
        default=None,
        min_length=1,
        description="the target's model, whose tokenizer lets lookup draft what a grammar forces; none: it does not",
    )
    prediction_window: int = Field(
        default=64, ge=1, le=4_096, description="how far ahead in a prediction text is looked for after a mismatch"
    )

    other_vocabulary: OtherVocabulary = Field(
        default="auto",
        description="how to draft for a target with another tokenizer (docs/vocabularies.md); auto: by shared ids if "
        "they say most of the target's text, else by shared text",
    )
    draft_prompt: DraftPrompt = Field(
        default="auto",
        description="what a chat is to a drafter by shared text: the target's prompt, or the messages in the chat "
        "template of its own; auto: what drafts better",
    )
    history_mb: int = Field(
        default=64, ge=0, le=1_048_576, description="memory for answers that drafts are copied from, in MiB; 0: none"
    )
    history_file: Path | None = Field(
        default=None, description="where that memory is kept over restarts (token ids, readable by the user alone)"
    )

    @model_validator(mode="after")
    def _ngrams_in_order(self) -> DraftWorkerConfig:
        if self.lookup_min_ngram > self.lookup_max_ngram:
            raise ValueError("lookup_min_ngram: exceeds lookup_max_ngram")
        return self
