"""What a job's rows are made of, known before anything is made of it, and compared while it runs.

A worker that is started again loads the model's file anew, and a file of the input is opened at
every read. Were one of them replaced meanwhile, rows of both would lie side by side. So they are
compared before a part is recorded, and in any case before the end: as often as costs little, as
there may be millions of files. Parts that were recorded since the last time that all was well are
not certain: when something turns out to have changed, they are forgotten.

The model is known by its content as the engine is about to be started, and not afterwards, when the
file may be another one than what was loaded.
"""

from __future__ import annotations

import time

from penstock.config import Model
from penstock.data.source import Source
from penstock.errors import ConfigError
from penstock.offline import fingerprints
from penstock.offline.manifest import Manifest
from penstock.offline.setting_up import Served, content_of

_SHARE = 0.02  # of the time that comparing may take


class Origins:
    """Those of one run. `model`: `None` for one in an engine that runs already (`serve`)."""

    def __init__(self, model: Model | None, map: str, manifest: Manifest) -> None:
        self._model, self._map, self._manifest = model, map, manifest
        self._served: Served | None = None
        self._content = ""
        self._stamps = self._stamped()  # what is written while it is read for the first time counts
        self.model = "" if model is None else fingerprints.of_model(model)
        self.code = self._code()
        self._uncertain: list[int] = []
        self._next = 0.0

    def serve(self, served: Served) -> None:
        """The model is one that runs already: known by what its engine tells of it."""
        self._served, self._content = served, str(served.facts.get("content", ""))
        self.model = fingerprints.of_served(served.model, served.spec, served.facts)

    def compare(self, source: Source) -> None:
        """Raise `ConfigError` when something has changed. What was recorded since the last time is
        forgotten then."""
        began = time.monotonic()
        changed = self._changed(source)
        if changed:
            if self._uncertain:
                self._manifest.forget_parts(self._uncertain)
                self._uncertain = []
            raise ConfigError(
                f"the {' and the '.join(changed)} changed while the job ran: nothing made after "
                "that is kept; put things back as they were to go on, or begin anew with "
                "--restart (restart=True)"
            )
        now = time.monotonic()
        self._next = now + (now - began) / _SHARE
        self._uncertain = []

    def compare_before(self, part: int, source: Source) -> None:
        """Before this part is recorded: compare, or take it for uncertain if it is too early."""
        if time.monotonic() >= self._next:
            self.compare(source)
        else:
            self._uncertain.append(part)

    def compare_at_last(self, source: Source) -> None:
        """As `compare`, at the end of a run that comes to nothing: where there is a reason to."""
        if self._uncertain:
            self.compare(source)

    def _changed(self, source: Source) -> list[str]:
        found = [] if source.unchanged() else ["input"]
        if self._served is not None and content_of(self._served) not in ("", self._content):
            found.append("model")
        stamps = self._stamped()
        if stamps != self._stamps:
            if self._model is not None and fingerprints.of_model(self._model) != self.model:
                found.append("model")
            if self._code() != self.code:
                found.append("function on the outputs")
            if not found:
                self._stamps = stamps  # it was written with what had been in it
        return found

    def _stamped(self) -> list[object]:
        named: list[object] = [self._map]
        if self._model is not None:
            named += [self._model.source, self._model.preprocess, self._model.postprocess]
        return [fingerprints.stamps(text) for text in named if isinstance(text, str) and text]

    def _code(self) -> str:
        return fingerprints.of_text(self._map) if self._map else ""
