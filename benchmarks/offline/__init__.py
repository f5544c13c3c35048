"""A whole data set through one network: MobileNetV2 on JPEG files and on a `.npy`.

- `rows`: makes the network and both data sets
- `limit`: the bare compiled function on data in memory; imports no Penstock
- `ways`: `model.predict` with `tf.data`, a `multiprocessing.Queue` recipe, Ray Data, Penstock
- `way`: the process that runs one of them; `watch`: the most memory that it and its own held
- `gpu`: ResNet-50 on a GPU, beside its limit; `gpu_data` makes the rows, `gpu_job` runs a job
- `flat`: memory from ten thousand to ten million rows, with a model that does nothing
"""
