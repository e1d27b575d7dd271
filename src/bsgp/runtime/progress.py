"""A progress bar; it prints nothing if there is no terminal."""

from contextlib import contextmanager


@contextmanager
def progress_bar(disable: bool = False):
    """Yields a `report` callback for `bsgp.sample`; the bar shows phase, energy per row, updates/s and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task):
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} updates/s")

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("energy/N {task.fields[energy]:.3f}"),
        Rate(),
        TimeRemainingColumn(),
        console=console,
        disable=disable or not console.is_terminal,
    )
    tasks = {}

    def report(phase: str, done: int, total: int, energy: float) -> None:
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total, energy=energy)
        bar.update(tasks[phase], completed=done, energy=energy)

    with bar:
        yield report
