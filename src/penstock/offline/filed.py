"""A run of a job that writes a file: what was done before, what is left, and the output at the end.

What is done is looked up before anything is started: a job that is whole, or is about something
else by now, costs no engine.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from penstock.data.source import Source
from penstock.errors import ConfigError, PenstockError
from penstock.offline import fingerprints
from penstock.offline.cut import Cut, cut
from penstock.offline.ending import (
    check_free,
    check_output,
    empty_columns,
    size_of,
    sizes,
    write_errors,
    write_output,
)
from penstock.offline.failures import first_of
from penstock.offline.feed import Input, derived_options, feed_of
from penstock.offline.job import Job, Tell, Work
from penstock.offline.joining import Joining
from penstock.offline.manifest import Manifest, another, check_same
from penstock.offline.monitor import Monitor, cores
from penstock.offline.options import Options
from penstock.offline.origins import Origins
from penstock.offline.outcome import check_rows, kinds_of, report_of, text_of
from penstock.offline.parts import DATA, ERRORS, KEYS, Facts
from penstock.offline.place import Place
from penstock.offline.report import JobReport
from penstock.offline.selection import select
from penstock.offline.setting_up import Served, model_of, served_by, serving
from penstock.offline.sizes import fitting, row_size


class FiledRun:
    """One run of a job that writes a file."""

    def __init__(
        self, model: Any, source: Any, options: Options, place: Place, manifest: Manifest
    ) -> None:
        self._what, self._options, self._place = source, options, place
        self._manifest = manifest
        self._input = Input(source, options.source, place.own)
        self._began = time.monotonic()
        self._model = None if options.engine_name else model_of(model, options.model)
        self._name = str(model) if self._model is None else self._model.name
        self._known = bool(manifest.header)
        strange = not os.fstat(manifest.descriptor).st_size  # of no job, whatever is there
        if strange and size_of(place.out) >= 0 and self._input.left_out:
            raise ConfigError(
                f"{place.out} exists already, and is part of the source: choose another output"
            )
        other = manifest.header.get("out", place.out)
        if options.job.work and other != place.out:
            raise ConfigError(
                f"{place.work} has what is done of another output of this name, {other}: "
                "choose another folder (--work), or begin anew with --restart (restart=True)"
            )
        if not manifest.parts and not manifest.done:
            manifest.forget()  # nothing is lost by another beginning, with other options perhaps
        self._origins = Origins(self._model, str(options.job.map or ""), manifest)

    def run(self, tell: Tell) -> JobReport:
        """Do what is left to do."""
        options, manifest = self._options, self._manifest
        with contextlib.ExitStack() as stack:
            header = manifest.header
            served: Served | None = None
            if self._model is None:
                served = stack.enter_context(
                    served_by(options.engine_name, self._name, options.engine_folder)
                )
                self._origins.serve(served)
            derived = header.get("derived", {})
            source = self._input.open(derived)
            if header:
                if source is None:
                    raise another(["input"], manifest.path)
                check_same(header["identity"], self._identity(source), manifest.path)
                if manifest.done:
                    return self._done_before(source)
            if served is None:
                assert self._model is not None
                plan = header.get("plan")
                decodes = source is None or source.decodes
                served = stack.enter_context(
                    serving(self._model, options.engine, plan, decodes=decodes)
                )
            if source is None:
                derived = derived_options(served.spec)
                source = self._input.open(derived)
                assert source is not None
            return self._work(source, served, derived, tell)

    def _work(
        self, source: Source, served: Served, derived: dict[str, Any], tell: Tell
    ) -> JobReport:
        manifest, place, store = self._manifest, self._place, self._place.store()
        settings = self._options.job
        feed = feed_of(source, served.spec, settings, self._options.source.get("key"))
        rows = source.only(feed.needs)  # what identifies the input, and cuts it, is all of it
        batch = served.batch_of(feed.sample(rows.signature))
        size = row_size(rows, served, batch)
        if manifest.header:
            shape = Cut(**manifest.header["cut"])
            selection = select(source, settings, shape.batch)
            store.check(manifest.parts)
            if batch < shape.batch:
                raise ConfigError(
                    f"the job was begun with batches of {shape.batch}; the engine takes {batch}"
                )
        else:
            batch = fitting(batch, size, rows)
            selection = select(source, settings, batch)
            each = 0 if selection.endless else len(selection) // (settings.loaders or cores())
            shape = cut(batch, size, settings.chunk, rows.decodes, served.rate, each)
            if not (settings.restart or self._known or place.shard):
                check_free(place)
            store.remove()
            manifest.begin(
                {
                    "identity": self._identity(source),
                    "derived": derived,
                    "plan": served.plan(),
                    "cut": shape.to_json(),
                    "rows": source.rows,
                    "out": place.out,
                    "versions": fingerprints.versions(),
                }
            )
        store.make()
        manifest.begin_run()
        work = Work(
            rows,
            selection,
            shape,
            feed,
            settings,
            served,
            store,
            place.loader_sink(),
            manifest.descriptor,
            size,
        )
        joining = Joining(place, store)
        for part, facts in sorted(manifest.parts.items()):
            joining.add(part, facts)

        def record(part: int, facts: Facts) -> None:
            self._origins.compare_before(part, source)
            manifest.record(part, facts)
            joining.add(part, facts)

        job = Job(work, manifest.parts, record)
        monitor = Monitor(served.client, len(served.devices))
        known, starting = job.rows, time.monotonic() - self._began
        try:
            job.run(monitor, tell)
            taken, began = monitor.seconds, time.monotonic()
            check_rows(job)
            first = first_of(store.paths(job.parts, ERRORS))
            self._origins.compare(source)
            errors = self._end(job, served, joining)
        except PenstockError as error:
            failed = store.paths(job.parts, ERRORS)
            if failed:
                error.add_note(f"the first row that failed: {first_of(failed)}")
            if not place.shard:  # whose failures stay with its parts, until they are merged
                write_errors(place, failed)
            raise
        finally:
            joining.drop()
            with contextlib.suppress(PenstockError, OSError):  # what ended the run says more
                self._origins.compare_at_last(source)
        return report_of(
            self._name, self._what, self._told, job, monitor, known, taken, starting,
            time.monotonic() - began, errors, self._notes(), first,
        )  # fmt: skip

    @property
    def _told(self) -> str:
        """Where the rows are: a shard's lie in its parts."""
        place = self._place
        return str(place.store().folder) if place.shard else place.out

    def _end(self, job: Job, served: Served, joining: Joining) -> str:
        """Make the output of the parts; a shard's stay what they are, to be merged."""
        place, store = self._place, self._place.store()
        done = {"written": job.written, "failed": job.failed, "kinds": kinds_of(job.parts)}
        empty = empty_columns(served.spec, self._options.job, job.work.source.signature)
        if place.shard:
            plain = {name: [str(array.dtype), list(array.shape)] for name, array in empty.items()}
            self._manifest.finish({**done, "empty": plain})
            return ""
        data, keys = store.paths(job.parts, DATA), store.paths(job.parts, KEYS)
        write_output(place, data, keys, empty, job.written, joining.finish())
        errors = write_errors(place, store.paths(job.parts, ERRORS))
        self._manifest.finish({**done, "sizes": list(sizes(place, job.failed).values())})
        store.remove()
        return errors

    def _identity(self, source: Source) -> dict[str, Any]:
        options, origins = self._options, self._origins
        chosen = options.job.identity()
        return {
            "input": source.fingerprint(),
            "model": origins.model,
            "options": {**chosen, **options.sink, "code": origins.code},
            "shard": options.job.shard,
        }

    def _done_before(self, source: Source) -> JobReport:
        done, place = self._manifest.done, self._place
        side = [place.errors] if done["failed"] and not place.shard else []
        if place.shard:
            place.store().check(self._manifest.parts)
        else:
            check_output(place, done)
            place.store().remove()  # what a crash may have left of it
        rows = done["written"] + done["failed"]
        return JobReport(
            self._name,
            text_of(self._what),
            self._told,
            rows,
            done["written"],
            done["failed"],
            rows,
            0.0,
            time.monotonic() - self._began,
            0.0,
            kinds=done["kinds"],
            errors="".join(side),
            first=first_of(side),
            notes=("everything was done before",),
        )

    def _notes(self) -> tuple[str, ...]:
        """What is not as it was when the job was begun."""
        before, now = self._manifest.header["versions"], fingerprints.versions()
        changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        return tuple(
            f"{name} was {before.get(name, 'not there')} when the job was begun, and is now "
            f"{now.get(name, 'not there')}: rows may differ in their last digits"
            for name in changed
        )
