"""`bsgp methods`: lists the methods that `bsgp fit` offers."""

import json

from bsgp.cli.common import Json, output


def methods(*, as_json: Json = False) -> None:
    """List the methods, with the objective of each and its treatment of u, Z, theta and the noise.

    Example: bsgp methods
    """
    from rich.table import Table

    from bsgp.methods.registry import METHODS

    if as_json:
        print(json.dumps({name: method.to_json() for name, method in METHODS.items()}, indent=2))
        return
    table = Table("method", "objective", "u", "Z", "theta", "noise", "layers", "classes", "description")
    for name, one in METHODS.items():
        layers, classes = "any" if one.is_deep else "1", "no" if one.needs_gaussian else "yes"
        table.add_row(name, one.objective, one.u, one.Z, one.theta, one.noise, layers, classes, one.about)
    output().print(table)
