"""The words of the page."""

from textwrap import fill


def paragraph(template: str, **values: object) -> str:
    """Filled in, and broken into lines anew."""
    return fill(" ".join(template.format(**values).split()), 116, subsequent_indent="  " * template.startswith("- "))


HEAD = """\
# Accuracy and memory, measured

Written by `python -m accuracy` (run from `python/`, with the package, PyTorch and Matplotlib installed; `--report`
writes this page again from the results that are there). Do not edit it: edit `python/accuracy/`.

Each line is DLRM (`python/examples/dlrm.py`) trained for one epoch through a real hotrow server, over its network
stack, on a 2-core Zen 3 virtual machine. Tables under 1 MiB at f32 stay f32 whatever is asked for; precision,
cache, rounding and policy are those of the *large* tables, and so are the hit rates (pulls during training) and the
write-backs per update (rows rounded per row stepped).

How to read the tables:

- **Paired.** The same seed gives the same split, order of samples, initial MLPs and initial rows. Differences are
  *line minus f32 of the same seed*: their mean and the 95 % interval of Student's t over the seeds. With two seeds
  that interval is very wide: those lines show a tendency.
- **What the large tables carry** is the AUC of f32 minus the AUC with the large tables left untrained. A difference
  is small if it is small against this. Every line would look lossless on data to which embeddings do not matter.
- **"no loss"** stands only where the interval reaches zero, its half-width is at most a tenth of what the large
  tables carry, *and* its lower end loses no more than that tenth. Otherwise the table gives the loss as a share of
  what they carry, or says that it cannot tell. One in twenty intervals misses the truth by chance, and there are
  many lines: do not read much into the fourth digit of one of them.
- **The control** is int4 with nearest rounding and no cache, which must lose. Where it does not, the data cannot tell,
  and no line on them is called lossless.
- **Bytes** are the server's count: rows, optimizer state, cache, directory. The **ratio** is to f32 with the same
  optimizer and no cache (computed: 4 bytes a number, one bit a row). "large" is the ratio of the large tables
  alone.
"""

ABOUT = {
    "flights": """\
327,346 real flights from New York City in 2013 (public domain), laid out like Criteo's click log: is a flight more
than 15 minutes late? **This is not Criteo**: it is far smaller. All sixteen columns are in **one table** (104,821
rows; `dlrm.py --one-table`), so that every column is stored at low precision, from the 3 airports to the 37,852
pairs of aircraft and month, and the cache decides which of them are not. That is harsher than a table for
each column, where small tables stay f32 (next section). How it came to be chosen: with separate tables at dim 16 the
control could not be told from f32 (+0.0002, one seed), with separate tables at dim 64 barely; one table was tried on the validation part of a
seed that is in no table of this page, with f32, the control, what is not trained, and three int4 lines.""",
    "flights-tables": """The same flights with a table for each column, as DLRM has them, at dim 64: five of the sixteen tables (5,419 to 37,852 rows) are
large enough to be stored at low precision, the others stay f32. Their skew is mild: in the three largest the 5 % most
frequent rows get 9 to 22 % of the accesses, where click logs have most, and a row is trained 7 to 50 times. (Lines with two
seeds are of an earlier, longer list.)""",
    "synthetic": """\
Made-up clicks with Criteo-Kaggle's 26 cardinalities (33.8 million rows), ids from a power law with exponent 1.05,
labels drawn from a factorization machine whose weights are hashes of the ids (`python/accuracy/synthetic.py`).
**This is not Criteo** either. So few samples touch only a few percent of the rows of the largest tables: there a
cache of 5 % of *all* rows holds every row that occurs, and little is rounded. The lines "of seen" give each
table a cache of 5 % of the rows that *occur*, as if training had gone on until all rows had; they are the ones that
test the cache.""",
}

SETTINGS = """\
The tables take {optimizer} at {learning_rate:g}, the MLPs SGD at {dense_learning_rate:g}; batches of {batch_size}, dim
{dim}, {partitions} partitions, split 80/10/10 at random. Figures are of the test part. The learning rates and the size
of the batches (256 or 512) are the best of a few for f32 on the validation part of one seed of flights with separate
tables at dim 16, found with PyTorch alone before the first line was run, and are the same on this whole page."""

F32 = """\
- f32 over {seeds} seeds: AUC {auc:.5f} (standard deviation {auc_spread:.5f}, from {low:.5f} to {high:.5f}), log loss
  {loss:.5f} (standard deviation {loss_spread:.5f}). Seeds differ in their test part, too; pairs do not."""

CARRY = """\
- The large tables carry {carry} of AUC. For "no loss" an interval must be at most ± {tenth:.4f}."""

CONTROL_IS_NOT_SEEN = """\
- **The control is not told from f32 here**: {control} is at {difference}. So nothing on these data can be called
  lossless."""

MEMORY = """\
## Memory at the paper's scale

Criteo-Kaggle's 26 tables, 33.8 million rows, made on a server with its default settings (128 partitions); bytes as
the server counts them. The small ones among the tables are f32 in every line.

| dim | precision | cache | optimizer | state | bytes | of them cache | f32, same optimizer | ratio |
|---|---|---|---|---|---|---|---|---|"""
