"""`bsgp data`: the named data sets."""

from cyclopts import App

from bsgp.cli.common import DataDir, output

data_app = App(name="data", help="Named data sets: the paper's eight UCI sets, banana, airline, higgs.")


@data_app.command(name="list")
def data_list(*, data_dir: DataDir = None) -> None:
    """List the known data sets, where they come from, and whether the data folder has them.

    Example: bsgp data list --data-dir data
    """
    from rich.table import Table

    from bsgp.experiments.datasets.named import NO_FOLDER, available

    table = Table("data set", "file", "rows", "inputs", "targets", "task", "state", "source")
    sets = available(data_dir)
    for one in sets:
        schema = one.schema
        table.add_row(
            schema.name, schema.file, f"{schema.rows:,}", str(len(schema.inputs)), str(len(schema.targets)),
            schema.task, one.state, schema.source, style=None if one.state == "found" else "yellow",
        )  # fmt: skip
    console = output()
    console.print(table)
    if any(one.state == NO_FOLDER for one in sets):
        console.print(
            "No data folder was named. Pass --data-dir, or set the environment variable BSGP_DATA.", soft_wrap=True
        )
