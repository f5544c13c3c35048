"""What is run: finding a model by its source and making it callable on batches.

`load` picks the way. A plain function (`source`, `function`) is run as it is. A TensorFlow model
becomes a `Graph` (`graph`), and that is compiled (`compiled`):

| step | files |
|---|---|
| from a source to a model | `source`, `live`, `archive` and `contents` (Keras files), `saved` |
| from a model to a part | `network` (Keras), `traceable` (`tf.function`), `structure` (names) |
| from parts to a graph | `assemble`, `parts` (joining), `chunks` (fixed rows), `digest` (its key) |
| how it runs best | `examine`, `samples`, `operations`, `independence`, `choice`, `agreement` |
| remembering that | `cache`, `circumstances`, `stored` (frozen graphs) |
| running it | `compiled`, `modes`, `handover` |
| TensorFlow itself | `quiet` (before it is imported), `runtime` (importing it) |
"""
