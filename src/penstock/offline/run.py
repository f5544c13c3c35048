"""`penstock.predict`: a data set in, a data set out; or arrays in, arrays out."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, overload

from penstock.config import Model
from penstock.errors import ConfigError, PenstockError
from penstock.offline.cut import cut
from penstock.offline.ending import empty_columns
from penstock.offline.feed import Input, derived_options, feed_of
from penstock.offline.filed import FiledRun
from penstock.offline.job import Job, Tell, Work
from penstock.offline.locks import sole_writer
from penstock.offline.manifest import open_manifest
from penstock.offline.memory import MemoryStore
from penstock.offline.monitor import Monitor
from penstock.offline.options import Options, sort_options
from penstock.offline.outcome import check_rows, report_of
from penstock.offline.place import place_of
from penstock.offline.report import JobReport
from penstock.offline.selection import select
from penstock.offline.setting_up import model_of, served_by, serving
from penstock.offline.sizes import fitting, row_size


@overload
def predict(
    model: Any,
    source: Any,
    out: str | os.PathLike[str],
    *,
    tell: Tell | None = None,
    on_report: Callable[[JobReport], None] | None = None,
    **options: Any,
) -> JobReport: ...


@overload
def predict(
    model: Any,
    source: Any,
    out: None = None,
    *,
    tell: Tell | None = None,
    on_report: Callable[[JobReport], None] | None = None,
    **options: Any,
) -> Any: ...


def predict(
    model: Any,
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    tell: Tell | None = None,
    on_report: Callable[[JobReport], None] | None = None,
    **options: Any,
) -> Any:
    """Predict a whole data set.

    - `model`: a source, as for an `Engine`, or a `Model`; with `engine`, the name of one there
    - `source`: what `penstock.data.open_source` takes: a file, a folder, a pattern, arrays
    - `out`: the file to write: .parquet, .arrow, .npy, .jsonl, .tfrecord or .csv
    - `tell`: called with a `Progress`, twice a second
    - `on_report`: called with the report, where the outputs are what is returned
    - `engine`: the name of an engine that runs already; by default the job has one of its own

    All other options are the job's (fields of `penstock.offline.settings.JobSettings`, such as
    `outputs`, `keep`, `shard`, `max_errors`, `restart`), the source's (`key`, `size`, `columns`,
    …), or fields of `Model` and of `EngineConfig`. `penstock predict --help` lists them all.

    Returns a `JobReport`, which counts the rows that failed; without `out`, the outputs themselves,
    as an engine's `predict` does, and then rows that fail raise `RowsFailed`.

    May be killed at any time: the same call goes on from where it was. Raises `ConfigError` when
    `out` is of a job with another model, input or option, or another job writes it, and
    `InputError` when the source does not fit the model, or too many rows fail (`max_errors`).
    """
    given = sort_options(options)
    say = tell or (lambda progress: None)
    if out is None:
        outputs, report = _in_memory(model, source, given, say)
        if on_report is not None:
            on_report(report)
        if isinstance(outputs, PenstockError):
            raise outputs
        return outputs
    place = place_of(out, given.job, given.sink)
    try:
        manifest = open_manifest(place.manifest, anew=given.job.restart)
        try:
            with sole_writer(place.lock):
                report = FiledRun(model, source, given, place, manifest).run(say)
        finally:
            manifest.close()
    except OSError as error:
        raise _said(error) from error
    if on_report is not None:
        on_report(report)
    return report


def _in_memory(model: Any, what: Any, options: Options, tell: Tell) -> tuple[Any, JobReport]:
    if options.job.shard:
        raise ConfigError("shard: expected an output to write parts of; see out")
    began = time.monotonic()
    settings = options.job
    with contextlib.ExitStack() as stack:
        given = Input(what, options.source)
        source = given.open()
        if options.engine_name:
            served = stack.enter_context(
                served_by(options.engine_name, str(model), options.engine_folder)
            )
            name = served.model
        else:
            chosen: Model = model_of(model, options.model)
            decodes = source is None or source.decodes
            served = stack.enter_context(serving(chosen, options.engine, decodes=decodes))
            name = chosen.name
        if source is None:
            source = given.open(derived_options(served.spec))
            assert source is not None
        feed = feed_of(source, served.spec, settings, options.source.get("key"))
        selected, source = source, source.only(feed.needs)
        batch = served.batch_of(feed.sample(source.signature))
        size = row_size(source, served, batch)
        batch = fitting(batch, size, source)
        shape = cut(batch, size, settings.chunk, source.decodes, served.rate)
        store = MemoryStore()
        selection = select(selected, settings, batch)
        work = Work(source, selection, shape, feed, settings, served, store, row_bytes=size)
        job = Job(work, {}, lambda part, facts: None)
        monitor = Monitor(served.client, len(served.devices))
        starting = time.monotonic() - began
        job.run(monitor, tell)
        taken = monitor.seconds
        check_rows(job)
        report = report_of(name, what, "", job, monitor, 0, taken, starting, 0.0, "", ())
        try:
            return store.outputs(empty_columns(served.spec, settings, source.signature)), report
        except PenstockError as error:
            return error, report


def _said(error: OSError) -> PenstockError:
    where = f"{error.filename}: " if error.filename else ""
    return ConfigError(
        f"{where}{error.strerror or error}; once that is fixed, the same call goes on from here"
    )
