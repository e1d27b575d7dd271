"""What a record says about its origin beside the commit: package versions and the checksum of the data."""

from importlib.metadata import PackageNotFoundError, version

from bsgp.experiments.datasets.named import schemas

PACKAGES = ("bsgp", "jax", "jaxlib", "numpy", "scikit-learn")


def provenance(record: dict) -> dict:
    """Fields that the worker adds to the record of a finished run."""
    versions = package_versions()
    return {
        "version": versions["bsgp"],
        "packages": versions,
        "data_sha256": data_checksum(record),
    }


def package_versions() -> dict[str, str | None]:
    """Installed versions of the packages that scores depend on. None for a package that is not installed."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    if name == "bsgp":  # the source that runs, which may be newer than what was installed
        from bsgp import __version__

        return __version__
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def data_checksum(record: dict) -> str | None:
    """SHA-256 of the file of a named data set, which `load_named` compared with the file before the run.

    None for the original files of airline and higgs, which have no known checksum, and for runs without a named set.
    """
    schema = schemas().get(record.get("dataset", ""))
    return None if schema is None or record.get("source") == "original" else schema.sha256
