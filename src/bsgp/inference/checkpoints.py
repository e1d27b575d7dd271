"""Checkpoints of a run: numbered files, each whole or absent, from which the run can resume however it ended.

A checkpoint is `checkpoint-N.json`, which holds the checksums, and `state-N.safetensors`; draws are in separate files
that are written once. The JSON file is written last: without it the others do not count. Nothing in a checkpoint is
ever executed, and no file name is read from it.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree
from safetensors import SafetensorError
from safetensors.numpy import load as load_bytes
from safetensors.numpy import save as save_bytes

from bsgp.runtime.files import flush_to_disk, replacing

logger = logging.getLogger("bsgp")

FORMAT_NAME, FORMAT_VERSION = "bsgp-checkpoint", 2
EVERY = 60.0
"""Seconds from one checkpoint to the next."""
NUM_KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{6})\.json")
_OWN = re.compile(r"checkpoint-\d{6}\.json|(state|draws)-\d{6}\.safetensors|\.[0-9a-f]{32}\.part")


class Snapshot(NamedTuple):
    """Everything that a run needs to resume."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]
    """Values that JSON can hold."""
    draws: list[dict[str, np.ndarray]]
    """Draws of every stretch, oldest first; `Checkpoints.save` takes only the new ones."""


class Checkpoints:
    """Checkpoints of one run, in its own folder. A run can resume only with the same `settings`."""

    def __init__(
        self, folder: str | os.PathLike, settings: dict[str, Any], *, resume: bool = False, every: float = EVERY
    ):
        self.folder, self.every = Path(folder), every
        self.settings = json.loads(json.dumps(settings))  # as they will be read back
        self._number = 0
        self._digests: list[str] = []
        self._saved_at = time.monotonic()
        self._may_resume = resume
        check_checkpoint_folder(self.folder)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self.every

    # -- reading -----------------------------------------------------------------------------------------------

    def load(self) -> Snapshot | None:
        """The newest undamaged checkpoint, or None: then the folder is emptied and the run starts over."""
        found = sorted(self._numbers(), reverse=True) if self._may_resume else []
        if not found:
            self._start_over()
            return None
        faults = []
        for number in found:
            try:
                return self._read(number)
            except _DamagedError as fault:
                faults.append(str(fault))
                logger.warning(
                    f"Checkpoint {number} in `{self.folder}` is damaged ({fault}); trying the one before it."
                )
        raise ValueError(
            f"`{self.folder}` must hold a whole checkpoint, got damaged ones only ({faults[0]}). "
            "Delete the folder, or start over without `--resume`."
        )

    def _start_over(self) -> None:
        if self._numbers() and not self._may_resume:
            logger.warning(
                f"The unfinished run in `{self.folder}` is discarded. Pass `--resume` to continue such a run."
            )
        if self.folder.exists():
            for path in self._own_files():
                path.unlink()

    def _numbers(self) -> list[int]:
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        return [int(match.group(1)) for name in names if (match := _NAME.fullmatch(name))]

    def _read(self, number: int) -> Snapshot:
        try:
            document = json.loads((self.folder / f"checkpoint-{number:06d}.json").read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise _DamagedError(f"{type(error).__name__}: {error}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
            raise _DamagedError("it is not a checkpoint")
        if document.get("version") != FORMAT_VERSION:
            raise ValueError(
                f"`{self.folder}` must be of checkpoint version {FORMAT_VERSION}, got {document.get('version')!r}. "
                "Resume it with the version of bsgp that wrote it."
            )
        self._check_settings(document.get("settings"))
        digests, state, facts = (document.get(name) for name in ("draws", "state", "facts"))
        if not isinstance(digests, list) or not isinstance(state, str) or not isinstance(facts, dict):
            raise _DamagedError("its fields are not those of a checkpoint")
        arrays = self._arrays(f"state-{number:06d}.safetensors", state)
        draws = [self._arrays(_draws_name(at), digest) for at, digest in enumerate(digests)]
        self._number, self._digests = number, list(digests)
        return Snapshot(arrays, facts, draws)

    def _check_settings(self, theirs: Any) -> None:
        theirs = theirs if isinstance(theirs, dict) else {}
        names = {**self.settings, **theirs}  # a setting that did not exist then counts as None
        name = next((name for name in names if self.settings.get(name) != theirs.get(name)), None)
        if name is None:
            return
        was, now = (json.dumps(which.get(name)) for which in (theirs, self.settings))
        raise ValueError(
            f"`--resume` must have the settings and the data of the run in `{self.folder}`, got another `{name}`: "
            f"it was {was[:60]} and is {now[:60]}. Run it as before, or start over without `--resume`."
        )

    def _arrays(self, name: str, digest: str) -> dict[str, np.ndarray]:
        try:
            raw = (self.folder / name).read_bytes()
        except OSError as error:
            raise _DamagedError(f"{name}: {error.strerror or error}") from None
        if hashlib.sha256(raw).hexdigest() != digest:
            raise _DamagedError(f"{name} does not match its checksum")
        try:
            return load_bytes(raw)
        except (SafetensorError, ValueError, KeyError) as error:
            raise _DamagedError(f"{name}: {error}") from None

    # -- writing -----------------------------------------------------------------------------------------------

    def save(self, snapshot: Snapshot) -> bool:
        """Write a checkpoint; whether it worked. A failing disk does not end the run: it warns and keeps the last."""
        self._saved_at = time.monotonic()
        number, digests = self._number + 1, list(self._digests)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for draws in snapshot.draws:
                digests.append(self._write(_draws_name(len(digests)), _packed(draws)))
            state = self._write(f"state-{number:06d}.safetensors", _packed(snapshot.arrays))
            document = {
                "format": FORMAT_NAME,
                "version": FORMAT_VERSION,
                "settings": self.settings,
                "state": state,
                "draws": digests,
                "facts": snapshot.facts,
            }
            self._write(f"checkpoint-{number:06d}.json", json.dumps(document).encode())
            flush_to_disk(self.folder)
        except OSError as error:
            kept = f"checkpoint {self._number} is kept" if self._number else "there is none yet"
            logger.warning(
                f"No checkpoint was written to `{self.folder}` ({error.strerror or error}): the run continues, {kept}."
            )
            return False
        self._number, self._digests = number, digests
        self._forget(number - NUM_KEPT)
        return True

    def _write(self, name: str, content: bytes) -> str:
        """Write beside, flush and rename; what a failure leaves behind is removed."""
        with replacing(self.folder / name) as file:
            file.write(content)
        return hashlib.sha256(content).hexdigest()

    def _forget(self, number: int) -> None:
        for name in (f"checkpoint-{number:06d}.json", f"state-{number:06d}.safetensors"):
            (self.folder / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete the checkpoints, once the run's result is saved elsewhere."""
        if self.folder.is_dir():
            for path in self._own_files():
                path.unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _own_files(self) -> list[Path]:
        """Files of checkpoints in the folder, the JSON documents first: without them the rest does not count."""
        return sorted(path for path in self.folder.iterdir() if _is_own(path.name))


class _DamagedError(Exception):
    pass


def check_checkpoint_folder(folder: Path) -> None:
    """A `ValueError` if the folder holds anything but checkpoints: that must not be overwritten or removed."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`{folder}` must be a folder, got a file. Choose another place for checkpoints.")
    others = [path.name for path in folder.iterdir() if not _is_own(path.name)] if folder.is_dir() else []
    if others:
        raise ValueError(
            f"`{folder}` must be new or hold checkpoints only, got `{others[0]}` in it. Choose another folder."
        )


def _is_own(name: str) -> bool:
    """Whether a file belongs to checkpoints, even one that a killed process left half written."""
    return _OWN.fullmatch(name) is not None


def _draws_name(index: int) -> str:
    return f"draws-{index:06d}.safetensors"


def _packed(arrays: dict[str, np.ndarray]) -> bytes:
    # safetensors 0.8.0 corrupts strided arrays without a word
    return save_bytes({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def pack(snapshot: Snapshot) -> bytes:
    """A snapshot as bytes for another process: the length of each part as JSON on the first line, then the parts."""
    parts = [_packed(snapshot.arrays), *map(_packed, snapshot.draws)]
    head = {"facts": snapshot.facts, "lengths": [len(part) for part in parts]}
    return b"\n".join([json.dumps(head).encode(), b"".join(parts)])


def unpack(content: bytes) -> Snapshot:
    """The snapshot that `pack` wrote."""
    head, _, rest = content.partition(b"\n")
    told = json.loads(head)
    ends = list(accumulate(told["lengths"]))
    arrays, *draws = (load_bytes(rest[end - size : end]) for end, size in zip(ends, told["lengths"], strict=True))
    return Snapshot(arrays, told["facts"], draws)


def tree_to_arrays(name: str, tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves of a tree, by number."""
    return {f"{name}.{at}": np.asarray(leaf) for at, leaf in enumerate(jax.tree.leaves(tree))}


def tree_from_arrays(name: str, like: PyTree, arrays: dict[str, np.ndarray], leading: Sequence[int]) -> PyTree:
    """The tree that `tree_to_arrays` wrote, shaped like `like` but for its leading axes."""
    leaves, structure = jax.tree.flatten(like)
    found = []
    for at, leaf in enumerate(leaves):
        array, shape = arrays.get(f"{name}.{at}"), (*leading, *leaf.shape[1:])
        if array is None or array.shape != shape or array.dtype != leaf.dtype:
            got = "none" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ValueError(
                f"The checkpoint must hold `{name}.{at}` as {leaf.dtype}{list(shape)}, got {got}. "
                "It belongs to another run: start over without `--resume`."
            )
        found.append(array)
    return jax.tree.unflatten(structure, found)
