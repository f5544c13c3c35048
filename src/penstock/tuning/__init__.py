"""Finding out how a model runs best on a device, before anybody is served: `penstock.tune`.

- `run`: `tune`, on the caller's side: no TensorFlow, no numpy
- `__main__`: the process that loads the model, measures, tells, and is thrown away
- `plan`: the `Plan` that comes out, and how facts become one
- `remembered`: plans of earlier runs, found without TensorFlow
- `show`: a plan in a terminal: a table, bars, reasons
- `picture`: a plan as a PNG

What is measured is a worker's business (`model`), and what was found is kept where a worker looks:
an engine that is started after this starts from there.
"""
