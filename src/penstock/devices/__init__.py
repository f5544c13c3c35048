"""Which GPUs there are, who may use which, and how much of their memory is promised to whom.

- `cards`: the GPUs, by NVML; what `CUDA_VISIBLE_DEVICES` leaves of them
- `mps`: whether CUDA's multi-process service runs
- `choose`: from the settings to a `Placement` for each worker, with its environment
- `ledger`: who was promised how much of a card, by all of a user's processes, until they end
- `room`: what that leaves of a card
- `plan`: what models need, what fits where, at what largest batch: arithmetic alone
- `limit`: TensorFlow kept to its share, from the moment that it is imported
- `claim`: `penstock.claim_gpu`, a share for a process of the user's own
- `startup/`: what Python runs first under `penstock run`

Nothing here imports TensorFlow or numpy or starts CUDA: a device is chosen, and its memory limited,
before TensorFlow is there.
"""
