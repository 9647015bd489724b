"""Controllers from networks that are saved as programs: ONNX and TorchScript files. The digest covers the file's bytes.

Such a file says what to compute, so asking the controller runs it, in onnxruntime or in torch's own interpreter. It
computes in its own precision, mostly single, whose last bits depend on the machine. So a replay elsewhere can differ.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccfs.controllers.actor import FrozenNormalizer, answered, prepared
from ccfs.controllers.adapters.content import framed
from ccfs.controllers.adapters.saved import Normalizer, as_normalizer
from ccfs.files.reading import read_bytes

if TYPE_CHECKING:
    import torch

__all__ = ["ProgramController", "from_onnx", "from_torchscript"]

Run: TypeAlias = "Callable[[NDArray[np.generic]], NDArray[np.generic]]"
_ONNX_TYPES: Final = {"tensor(float)": np.float32, "tensor(double)": np.float64}


def from_onnx(
    path: str | os.PathLike[str], normalizer: Normalizer = None, *, output: str | None = None
) -> ProgramController:
    """Return the controller that an ONNX file describes: a batch of observations in, a batch of answers out.

    Args:
        path: the file. Weights in other files beside it are refused, because the digest would not cover them.
        normalizer: applied to the observation first.
        output: name of the output that is the action or the scores. It must be given if there are several.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("An ONNX file needs onnxruntime. Install it: pip install 'ccfs-rl[onnx]'") from error
    content = _content(path)
    options = onnxruntime.SessionOptions()
    # One thread and fixed kernels, so that equal observations get equal answers.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    try:
        # From bytes: then there is no folder in which other files could be found.
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has classes of its own for every kind of damage
        raise ValueError(f"`path` must be an ONNX file that stands alone, got {str(path)!r}: {error}") from error
    inputs, outputs = session.get_inputs(), [part.name for part in session.get_outputs()]
    if len(inputs) != 1 or inputs[0].type not in _ONNX_TYPES:
        got = ", ".join(f"{part.name}: {part.type}" for part in inputs)
        raise ValueError(
            f"The network must have one input of numbers, a batch of observations, got {got}. A state belongs into a "
            "Controller of your own that hands it on."
        )
    if output is None and len(outputs) > 1:
        raise ValueError(f"`output` must name the output that is the action or the scores, one of {outputs}.")
    chosen = outputs[0] if output is None else output
    if chosen not in outputs:
        raise ValueError(f"`output` must be one of {outputs}, got {output!r}.")
    name, dtype = inputs[0].name, _ONNX_TYPES[inputs[0].type]

    def run(batch: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.asarray(session.run([chosen], {name: batch.astype(dtype)})[0])

    described = framed("onnx", content) + framed("output", chosen.encode())
    return ProgramController(run, f"ONNX file {Path(path).name}", described, normalizer)


def from_torchscript(
    path_or_module: str | os.PathLike[str] | torch.jit.ScriptModule, normalizer: Normalizer = None
) -> ProgramController:
    """Return the controller that a TorchScript file describes: a batch of observations in, a batch of answers out.

    Args:
        path_or_module: a file that `torch.jit.save` wrote, or a scripted or traced module.
        normalizer: applied to the observation first.
    """
    import torch

    if isinstance(path_or_module, (str, os.PathLike)):
        content, name = _content(path_or_module), f"TorchScript file {Path(path_or_module).name}"
    elif isinstance(path_or_module, torch.jit.ScriptModule):
        content, name = bytes(path_or_module.save_to_buffer()), "TorchScript module"
    else:
        raise TypeError(f"`path_or_module` must be a TorchScript file or module, got {type(path_or_module).__name__}.")
    _refuse_code_at_loading(content, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch recommends another format for new files
        try:
            module = torch.jit.load(io.BytesIO(content), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        except Exception as error:  # a foreign file makes the reader raise almost anything
            raise ValueError(f"The {name} must be one that `torch.jit.save` wrote, got {error}") from error
    kinds = {tensor.dtype for tensor in (*module.parameters(), *module.buffers()) if tensor.is_floating_point()}
    dtype = np.float64 if kinds == {torch.float64} else np.float32

    def run(batch: NDArray[np.generic]) -> NDArray[np.generic]:
        with torch.no_grad():
            answer = module(torch.from_numpy(batch.astype(dtype)))
        if not isinstance(answer, torch.Tensor):
            raise ValueError(f"The {name} must return one tensor, a batch of answers, got {type(answer).__name__}.")
        return np.asarray(answer.detach().numpy())

    return ProgramController(run, name, framed("torchscript", content), normalizer)


class ProgramController:
    """A saved network as a controller. Satisfies `Controller`."""

    def __init__(self, run: Run, name: str, described: bytes, normalizer: Normalizer = None) -> None:
        given = as_normalizer(normalizer)
        self._run, self.name = run, name
        self._normalizer = given if isinstance(given, FrozenNormalizer) else None
        values = (
            () if self._normalizer is None else (self._normalizer.mean, self._normalizer.std, self._normalizer.clip)
        )
        described += b"".join(framed(value.dtype.str, value.tobytes()) for value in values)
        self._digest = hashlib.sha256(b"ccfs.program-controller/1" + described).hexdigest()
        self._is_tried = False

    @property
    def digest(self) -> str:
        """SHA-256 of the file's bytes, of the name of the output and of the normaliser."""
        return self._digest

    def reset(self) -> None:
        """Begin a trial. The program has no memory, which the first observation of each trial shows."""
        self._is_tried = False

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the answer to one observation as float64. NaN and infinities are refused.

        The first observation of a trial is answered twice, to find and refuse a program that draws or learns.
        """
        x: NDArray[np.generic] = np.asarray(observation)
        if self._normalizer is not None:
            x = prepared(x, self._normalizer)
        answer = self._answer(x)
        if not self._is_tried:
            if self._answer(x).tobytes() != answer.tobytes():
                raise ValueError(f"The {self.name} must be deterministic, got two answers to one observation.")
            self._is_tried = True
        return answer

    def _answer(self, x: NDArray[np.generic]) -> NDArray[np.float64]:
        try:
            batch = self._run(x[None])
        except Exception as error:  # whatever the program raises for another shape
            raise ValueError(
                f"The {self.name} must take a batch of observations, got {type(error).__name__} for one of shape "
                f"{x.shape}: {error}"
            ) from error
        if not (batch.ndim == 2 and len(batch) == 1):
            raise ValueError(f"The {self.name} must return a batch of answers, shape (1, d), got {batch.shape}.")
        return answered(self.name, batch[0])


def _content(path: str | os.PathLike[str]) -> bytes:
    if not Path(path).is_file():
        raise ValueError(
            f"`path` must be a file, got {str(path)!r}, {'a folder' if Path(path).is_dir() else 'nothing there'}."
        )
    return read_bytes(Path(path))


def _refuse_code_at_loading(content: bytes, name: str) -> None:
    """Refuse a file that runs code of its own while it is loaded, which its `__setstate__` would."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            sources = [part for part in archive.namelist() if "/code/" in part and part.endswith(".py")]
            is_code = any(b"__setstate__" in archive.read(part) for part in sources)
    except zipfile.BadZipFile as error:
        raise ValueError(f"The {name} must be one that `torch.jit.save` wrote, got {error}.") from error
    if not sources:
        raise ValueError(
            f"The {name} must be one that `torch.jit.save` wrote, got an archive without code. A file of weights alone "
            "needs its module: load them into it and use `from_torch`."
        )
    if is_code:
        raise ValueError(f"The {name} must not run code while it is loaded, got one with `__setstate__`.")
