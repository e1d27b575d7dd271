"""Builds stores atomically: in a hidden folder, which is renamed once everything is on disk."""

import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bsgp.data.store.convert import Conversion, Sizes, convert
from bsgp.data.tables.chunks import estimate_size, source_files
from bsgp.data.tables.columns import shortened
from bsgp.runtime.files import flush_to_disk

FORMAT_NAME = "bsgp-store"
FORMAT_VERSION = 1
ROWS, DESCRIPTION = "rows.f32", "store.json"

_DIGEST_BYTES = 1 << 16  # bytes that are hashed at the start, in the middle and at the end of a file
_DAY = 86_400.0


@dataclass(frozen=True)
class SourceFiles:
    """The files of a table, and the facts by which a change of them is noticed."""

    path: Path
    stats: list[list]
    """Name, size and modification time of each file."""
    digests: list[str]
    """Hash of some bytes of each file."""

    @classmethod
    def of(cls, path: Path) -> "SourceFiles":
        files = source_files(path)
        try:
            return cls(path, _stats(files), [_digest(file) for file in files])
        except OSError as error:
            raise ValueError(f"`{path}` must be readable, got an error: {shortened(error)}. Check its files.") from None

    def check_unchanged(self) -> None:
        try:
            same = _stats(source_files(self.path)) == self.stats
        except (OSError, ValueError):
            same = False
        if not same:
            raise ValueError(f"`{self.path}` must not change while it is read, got a new version. Run it again.")


def _stats(files: list[Path]) -> list[list]:
    return [[str(file), (found := file.stat()).st_size, found.st_mtime_ns] for file in files]


def _digest(file: Path) -> str:
    size = file.stat().st_size
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        for start in (0, max(size // 2 - _DIGEST_BYTES // 2, 0), max(size - _DIGEST_BYTES, 0)):
            opened.seek(start)
            digest.update(opened.read(_DIGEST_BYTES))
    return digest.hexdigest()


class StoreBuilder:
    """Builds a store in a hidden folder of the cache, and renames it when everything is on disk."""

    def __init__(self, source: SourceFiles, cache: Path, key: str, sizes: Sizes, say: Callable[[str], None]):
        self._source, self._cache, self._key, self._sizes, self._say = source, cache, key, sizes, say

    def build(
        self, folder: Path, targets: Sequence[str], ignore: Sequence[str], weights: str | None, task: str | None
    ) -> None:
        temporary = self._cache / f".{self._key[:8]}-{uuid.uuid4().hex}.part"
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            _remove_stale(self._cache)
            temporary.mkdir()
            self._fill(temporary, targets, ignore, weights, task)
            _move(temporary, folder)
        except OSError as error:
            raise self._explain(error) from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _fill(
        self, temporary: Path, targets: Sequence[str], ignore: Sequence[str], weights: str | None, task: str | None
    ) -> None:
        started = time.monotonic()
        try:
            conversion = convert(
                self._source.path, temporary / ROWS, targets=targets, ignore=ignore, weights=weights, task=task,
                seed=int(self._key[:16], 16), sizes=self._sizes, say=self._say,
            )  # fmt: skip
        except ValueError:
            self._source.check_unchanged()  # a change in progress may have caused the error
            raise
        self._source.check_unchanged()
        files = [name for name, _, _ in self._source.stats]
        with (temporary / DESCRIPTION).open("x", encoding="utf-8") as file:
            json.dump(_description(conversion, self._key, files), file)
            file.flush()
            os.fsync(file.fileno())
        flush_to_disk(temporary)
        seconds = time.monotonic() - started
        self._say(f"Converted {self._source.path.name}: {conversion.num_rows:,} rows in {seconds:.0f} s.")

    def _explain(self, error: OSError) -> ValueError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needed = max(estimate_size(self._source.path).bytes_in_memory / 1e6, 1.0)
            return ValueError(
                f"`{self._cache}` must have room for about {needed:,.0f} MB, got a full disk. "
                "Free some space, or set `BSGP_CACHE` to another folder."
            )
        why = shortened(error.strerror or error)
        return ValueError(f"`{self._cache}` must be writable, got an error: {why}. Set `BSGP_CACHE` to another folder.")


def _description(conversion: Conversion, key: str, files: list[str]) -> dict[str, Any]:
    return {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "key": key,
        "sources": files,
        "num_rows": conversion.num_rows,
        "num_inputs": conversion.schema.width,
        "num_targets": len(conversion.target_state.names),
        "block_rows": conversion.block_rows,
        "checksums": conversion.checksums,
        "schema": conversion.schema.to_json(),
        "task": conversion.task,
        "targets": conversion.target_state.to_json(),
        "notes": conversion.notes,
        "total_weight": conversion.total_weight,
    }


def _move(temporary: Path, folder: Path) -> None:
    try:
        os.rename(temporary, folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return  # another process built the same store first
    flush_to_disk(folder.parent)


def _remove_stale(cache: Path) -> None:
    """Removes folders that killed processes left behind. A running one would have written something within a day."""
    for folder in cache.glob(".*.part"):
        try:
            last = max(one.stat().st_mtime for one in (folder, *folder.iterdir()))
        except OSError:
            continue
        if time.time() - last > _DAY:
            shutil.rmtree(folder, ignore_errors=True)
