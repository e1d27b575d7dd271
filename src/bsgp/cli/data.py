"""`bsgp data`: the named data sets."""

from cyclopts import App

from bsgp.cli.common import DataDir, output

data_app = App(name="data", help="Named data sets: the paper's eight UCI sets, banana, airline, higgs.")


@data_app.command(name="list")
def data_list(*, data_dir: DataDir = None) -> None:
    """Show which data sets are there, and where a missing one comes from.

    Example: bsgp data list --data-dir ../shared/data
    """
    from rich.table import Table

    from bsgp.data.named import available

    table = Table("data set", "rows", "inputs", "targets", "task", "state", "what it is")
    for one in available(data_dir):
        schema = one.schema
        table.add_row(
            schema.name, f"{schema.rows:,}", str(len(schema.inputs)), str(len(schema.targets)), schema.task,
            one.state, schema.source, style=None if one.state == "there" else "yellow",
        )  # fmt: skip
    output().print(table)
