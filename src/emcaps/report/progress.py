"""Progress bars for long work; they go to standard error, so that results can be piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from emcaps.train import loop


@contextmanager
def training_bar(title: str, steps: int) -> Iterator[Callable[[loop.Progress], None]]:
    """A bar of steps with loss, accuracy, images per second and time left."""
    with _bar("{task.completed}/{task.total}", "{task.fields[metrics]}") as bar:
        task = bar.add_task(title, total=steps, metrics="")

        def show(progress: loop.Progress) -> None:
            metrics = ""
            if progress.row:
                metrics = (
                    f"loss {progress.row['loss']:.3f} acc {100 * progress.row['accuracy']:.0f}% "
                    f"{progress.row['images_per_second']:,.0f} img/s"
                )
            if progress.evaluated:
                metrics = f"evaluated {progress.evaluated:,} images"
            bar.start()
            bar.update(task, completed=progress.step, metrics=metrics)

        yield show


@contextmanager
def counting_bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of things done out of a total, with time left."""
    with _bar("{task.completed:,}/{task.total:,} " + unit) as bar:
        task = bar.add_task(title, total=1)

        def show(done: int, total: int) -> None:
            bar.start()
            bar.update(task, completed=done, total=total)

        yield show


@contextmanager
def _bar(*texts: str) -> Iterator[Progress]:
    """A bar that appears with the first report of progress, so that an early error is shown without one."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        *(TextColumn(text, markup=False) for text in texts),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
        console=Console(stderr=True),
    )
    try:
        yield bar
    finally:
        if bar.live.is_started:
            bar.stop()
