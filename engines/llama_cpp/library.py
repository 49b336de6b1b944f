"""llama.cpp's C library through llama-cpp-python's ctypes: its log, and thread pools, which the bindings leave out."""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from pathlib import Path
from typing import Any

from engines.errors import ModelError

logger = logging.getLogger(__name__)

INSTALL = "pip install -e '.[llama-cpp]' (it is built from source: docs/llama_cpp.md), or make run ENGINE=llama_cpp"
_ERROR = 4
_REPACKED = "CPU_REPACK model buffer size"
_CONTINUED = 5
_MOST_THREADS = 512
_KEPT_ERRORS = 20


def check_installed() -> None:
    """Raises ModelError, saying what to install, if llama-cpp-python is missing or does not load."""
    try:
        import llama_cpp  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"engine llama_cpp needs llama-cpp-python ({error}): {INSTALL}") from error


class Log:
    """Takes llama.cpp's log: errors are kept, as reasons why something failed, and all goes to Python's at debug."""

    def __init__(self, api: Any) -> None:
        self.errors: deque[str] = deque(maxlen=_KEPT_ERRORS)
        self.repacked = False
        """Whether weights were repacked since this was last set to False; llama.cpp says so nowhere else."""
        self._level = 0

        def take(level: int, text: bytes, _: Any) -> None:
            self._take(level, text.decode("utf-8", "replace").strip())

        self._callback = api.llama_log_callback(take)  # kept, or the library would call into freed memory
        api.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _take(self, level: int, text: str) -> None:
        self._level = self._level if level == _CONTINUED else level
        if not text.strip("."):
            return
        if self._level == _ERROR:
            self.errors.append(text)
        self.repacked |= _REPACKED in text
        logger.debug("%s", text)

    def reason(self) -> str:
        """The errors since the last call, as one line."""
        found = list(dict.fromkeys(self.errors))
        self.errors.clear()
        return "; ".join(found) or "llama.cpp does not say why"


class Library:
    """The bindings (`api`) with their log taken over. One for a process: `library()`."""

    def __init__(self) -> None:
        check_installed()
        import llama_cpp
        from llama_cpp import llama_cpp as api

        self.api: Any = api
        self.version: str = llama_cpp.__version__
        self.log = Log(api)
        api.llama_backend_init()
        self.tiled_products: str | None = None
        """The environment's word on products in tiles when the first model was loaded: llama.cpp reads it once in a
        process, at the first pass, so a later model has what the first one asked for."""

    @property
    def folder(self) -> Path:
        """Where the library and those that it needs lie."""
        return Path(self.api._lib._name).resolve().parent

    @property
    def system(self) -> str:
        """What the library was built for and found here: instruction sets, backends."""
        return str(self.api.llama_print_system_info().decode())

    def thread_pool(self, threads: int) -> int | None:
        """A ggml thread pool whose threads do not poll for work; None if the library has none to give.

        Builds with OpenMP take OpenMP's threads anyway: how those wait is set in the environment (engines.table).
        """
        # The bindings' handle finds libllama's own dependencies; opening a file of the same name could load another
        # copy.
        lib = self.api._lib
        params = _ThreadPoolParams()
        try:
            lib.ggml_threadpool_params_init(ctypes.byref(params), ctypes.c_int(threads))
            lib.ggml_threadpool_new.restype = ctypes.c_void_p
        except AttributeError:
            return None
        if params.n_threads != threads or not 0 <= params.poll <= 100:
            return None  # another version's structure
        params.poll = 0
        return int(lib.ggml_threadpool_new(ctypes.byref(params)) or 0) or None

    def attach(self, context: Any, pool: int) -> None:
        """Have a context compute on this pool."""
        attach = self.api._lib.llama_attach_threadpool
        attach.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        attach.restype = None
        attach(context, pool, pool)


class _ThreadPoolParams(ctypes.Structure):
    """ggml_threadpool_params of ggml.h."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * _MOST_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


_loaded: list[Library] = []


def library() -> Library:
    """Raises ModelError if llama-cpp-python is not installed."""
    if not _loaded:
        _loaded.append(Library())
    return _loaded[0]
