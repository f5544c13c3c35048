"""What is run: finding a model by its source and making it callable on batches.

`load` picks the way. A plain function (`source`, `function`) is run as it is. A TensorFlow model
becomes a `Graph` (`graph`), and that is compiled (`compiled`):

| step | files |
|---|---|
| from a source to a model | `source`, `live`, `archive` and `contents` (Keras files), `saved` |
| from a model to a part | `network` (Keras), `traceable` (`tf.function`), `structure` (names) |
| in another precision | `precision` (policies, int8), `trial`, `drift`, `rounding` (which one) |
| from parts to a graph | `assemble`, `parts` (joining), `chunks` (fixed rows), `digest` (its key) |
| how it runs best | `examine`, `samples`, `operations`, `independence` |
| which compile mode | `contest` (who competes), `choice` (who wins), `agreement` |
| how many rows at a time | `sweep` (measures), `sizes` (decides), `peak` (memory), `pace` |
| remembering that | `findings`, `cache`, `circumstances`, `machine`, `stored`, `plans` |
| getting it ready | `preparation`, `beginning` (sizes) |
| running it | `compiled`, `rungs` (sizes), `calls`, `modes`, `handover` |
| too little memory | `shortage` (which errors say so), `traffic` (a call that is made alone) |
| TensorFlow itself | `watching` for it, `quiet`, `haste`, `impatience`, `xla_cache`, `runtime` |
"""
