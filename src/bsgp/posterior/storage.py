"""Saves and loads models without pickle: one folder with arrays (safetensors) and structure (JSON).

Only classes in `STORABLE` are ever instantiated from a file, so a file cannot run code.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bsgp.models import deep_gp, exact_gp, grid_gp, kernels, layer, likelihoods
from bsgp.models.parameters import leaf_name
from bsgp.runtime.files import flush_to_disk

FORMAT_NAME = "bsgp-posterior"
FORMAT_VERSION = 1
ARRAYS, STRUCTURE = "arrays.safetensors", "posterior.json"
EXTRA = "extra:"  # prefix of arrays outside the model; no path within a model begins with it

STORABLE = {
    cls.__name__: cls
    for module in (deep_gp, exact_gp, grid_gp, kernels, layer, likelihoods)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, eqx.Module) and cls.__module__.startswith(module.__name__)
}
"""Models, layers, kernels and likelihoods of bsgp, by class name."""


class Stored(NamedTuple):
    """Contents of a model folder."""

    module: eqx.Module
    """The model; its arrays have leading axes [C S]."""
    meta: dict
    """JSON values saved with the model."""
    extras: dict[str, np.ndarray]
    """Arrays saved with the model."""


def save_stacked(
    module: eqx.Module, folder: str | os.PathLike, meta: dict, extras: dict[str, np.ndarray] | None = None
) -> None:
    """Saves `module`, whose arrays have leading axes [C S], with `meta` (any JSON value) and `extras`.

    An existing `folder` is replaced as a whole, once the new one is on disk; if saving fails, it stays as it was.
    """
    folder = Path(folder)
    check_writable(folder)
    arrays: dict[str, np.ndarray] = {}
    structure = _describe(module, "", arrays)
    for name, array in (extras or {}).items():
        arrays[EXTRA + name] = np.ascontiguousarray(array)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    fresh.chmod(0o777 & ~_umask())  # mkdtemp makes a folder that only its owner can read
    try:
        save_file(arrays, fresh / ARRAYS)
        document = {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "arrays_sha256": hashlib.sha256((fresh / ARRAYS).read_bytes()).hexdigest(),
            "meta": meta,
            "structure": structure,
        }
        (fresh / STRUCTURE).write_text(json.dumps(document, indent=1), encoding="utf-8")
        for file in (fresh / ARRAYS, fresh / STRUCTURE, fresh):
            flush_to_disk(file)
        _replace_folder(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def check_writable(folder: str | os.PathLike) -> None:
    """Raises a `ValueError` if a model cannot be saved in `folder`. Meant to be called before a long fit."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`{folder}` must be a folder, got a file. Choose another name for the model.")
    if folder.exists() and any(folder.iterdir()) and not (folder / STRUCTURE).exists():
        raise ValueError(
            f"`{folder}` must be new, empty or a saved model, got a folder with other files. Choose another."
        )
    parent = folder.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(f"`{folder}` must be in a writable folder, got `{parent}`. Choose another.")


def load_stacked(folder: str | os.PathLike) -> Stored:
    """Loads a model folder in its original precision, or raises a `ValueError` that says what is wrong with it."""
    folder = Path(folder)
    try:
        document = json.loads((folder / STRUCTURE).read_text(encoding="utf-8"))
        raw = (folder / ARRAYS).read_bytes()
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"`{folder}` must be a folder written by `save`, got {type(error).__name__}: {error}. "
            "Check the path, or save again."
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
        raise ValueError(
            f"`{folder}` must be a saved posterior, got another kind of file. Pass a folder written by `save`."
        )
    if document.get("version") != FORMAT_VERSION:
        raise ValueError(
            f"`{folder}` must be of format version {FORMAT_VERSION}, got {document.get('version')!r}. "
            "Load it with the version of bsgp that wrote it."
        )
    if hashlib.sha256(raw).hexdigest() != document.get("arrays_sha256"):
        raise ValueError(
            f"`{folder / ARRAYS}` must match its checksum, got other bytes: it is damaged. Save or copy it again."
        )
    try:
        arrays = load_file(folder / ARRAYS)
        extras = {name.removeprefix(EXTRA): arrays.pop(name) for name in list(arrays) if name.startswith(EXTRA)}
        with jax.enable_x64(True):  # otherwise JAX would convert float64 to float32
            one_draw = _rebuild(document["structure"], {name: array[0, 0] for name, array in arrays.items()})
            stacked = jtu.tree_map_with_path(lambda path, _: jnp.asarray(arrays[leaf_name(path)]), one_draw)
        return Stored(stacked, document["meta"], extras)
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"`{folder}` must hold a complete posterior, got {error!r}: it is damaged. Save it again."
        ) from error


def _describe(node, path: str, arrays: dict):
    """JSON description of a tree of modules, tuples, arrays and plain values; fills `arrays` by path."""
    if isinstance(node, eqx.Module):
        if type(node).__name__ not in STORABLE:
            raise ValueError(
                f"`{path or 'model'}` must be an instance of a class of bsgp to be saved, got {type(node).__name__}. "
                "Build custom kernels as sums and products of bsgp's kernels."
            )
        names = [field.name for field in dataclasses.fields(node)]
        fields = {name: _describe(getattr(node, name), f"{path}.{name}".lstrip("."), arrays) for name in names}
        return {"class": type(node).__name__, "fields": fields}
    if isinstance(node, tuple):
        return {"tuple": [_describe(item, f"{path}.{index}", arrays) for index, item in enumerate(node)]}
    if isinstance(node, jax.Array | np.ndarray):
        arrays[path] = np.ascontiguousarray(node)  # safetensors 0.8.0 silently corrupts strided arrays
        return {"array": path}
    return {"value": node}


def _rebuild(node: dict, arrays: dict):
    """The tree that `_describe` described."""
    if "class" in node:
        return STORABLE[node["class"]](**{name: _rebuild(value, arrays) for name, value in node["fields"].items()})
    if "tuple" in node:
        return tuple(_rebuild(item, arrays) for item in node["tuple"])
    if "array" in node:
        return jnp.asarray(arrays[node["array"]])
    value = node["value"]
    return tuple(value) if isinstance(value, list) else value


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _replace_folder(fresh: Path, folder: Path) -> None:
    """Replaces `folder` by `fresh`. A rename cannot replace a non-empty folder, so the old one is moved aside first."""
    aside = None
    if folder.exists():
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
        os.rename(folder, aside / folder.name)
    os.rename(fresh, folder)
    flush_to_disk(folder.parent)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)
