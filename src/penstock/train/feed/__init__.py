"""What training is fed with: global batches, cut for workers, micro-batches and replicas.

- `cut`: who gets which rows of a global batch; pure
- `feed`: what every feed can do (`Feed`), and what their data sets share
- `opening`: `feed_for`, which finds the right one for what people pass to `fit`
- `arrays`: rows that are gathered by their numbers, in an order drawn for each epoch
- `memory`: where pieces lie, used again and again
- `padding`: what a worker without rows gets
- `tree`: arrays as `fit` takes them (alone, in dicts, tuples, lists), checked and flattened
- `datasets`: `tf.data`, cut anew to global batches; by data or by file
- `parts`: data of which each worker reads its own part, for parameter servers; `orders`: what is
  shuffled, in the order of an epoch as often as one likes
- `sources`: what `penstock.data` opens; `batches`: Python's generators; both by way of `datasets`
- `indexed`: batches that are read by number, and hear of epochs
- `mixing`: which rows of a source come in which batch, and what each worker reads of them; pure

TensorFlow is imported where a data set is made.
"""

from penstock.train.feed.feed import Feed
from penstock.train.feed.opening import feed_for

__all__ = ["Feed", "feed_for"]
