"""Offline prediction: a data set in, a data set out, nothing lost. See `docs/offline.md`.

A job cuts its rows into *batches*, what the model gets at a time, and batches into *parts*, what is
written at a time. Both are the same in every run: no result depends on timing, crashes or how many
take part.

    source ─▶ labour: read ─▶ send, gather ─▶ write ──▶ job: publish, record ──▶ join ─▶ output
                                  │    ▲                (manifest, at most two
                                  ▼    │                 parts ahead of it a labour)
                                  engine

- `run`: `predict`, the way in; `options`: who each option is for; `settings`: those of the job
- `filed`: a run that writes a file: what is known, what is left, the output (`ending`, `place`)
- `job`: the loop that assigns parts, records them, and watches
- `setting_up`: the engine, and what is known of the model; `feed`: which columns it gets, and how
- `cut`: rows to parts and batches; `selection`: which rows, of a shard or of all
- `labour`: one part after another: read, predict, write; `window`: batches that are on their way
- `crew`: who labours: a thread, or `loaders`, processes (`loader`) that decode; `shelves`: which
  parts one of them gets, as rows lie together; `deaths`: what is learnt from one that dies
- `forms`: what outputs look like: the same in all of a job
- `sizes`: what rows take in memory, which bounds what is read at a time
- `manifest`: what is done, and for what; `fingerprints`: whether it is still the same;
  `origins`: also while it runs; `locks`: who may write what
- `parts`, `memory`: where results are put; `joining`: parts to one output, meanwhile; `merge`: the
  shards' parts as one output, put in order by `ordering`
- `failures`: rows that failed, and the side file
- `stages`, `monitor`: where the time goes, what limits; `outcome`, `report`, `page`: what is told
"""
