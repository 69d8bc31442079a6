"""The letters that name dimensions: in docstrings as [R, n, D], as suffixes of variables as `x_RD`.

One legend for the whole project, so that a letter means the same in a kernel, a model and the trainer.
"""

LEGEND: dict[str, str] = {
    "R": "rows of a pass, one a token, dummies included",
    "B": "sequences of a batch, in sampling",
    "D": "hidden size",
    "n": "residual streams of the hyper-connection",
    "H": "attention heads",
    "d": "size of a head, and of a shared key-value entry",
    "r": "rotary part of a head, its last dimensions",
    "Q": "query rows of a tile",
    "O": "outputs of a projection",
    "I": "inputs of a projection",
    "K": "picks a row makes: experts of a token, entries of a query",
    "E": "routed experts",
    "F": "intermediate size of an expert",
    "N": "slots of the routed experts' products: picks and fillers",
    "V": "vocabulary",
    "c": "overlap of the compressor: 2 for CSA, 1 for HCA",
}
