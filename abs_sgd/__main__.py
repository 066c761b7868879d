"""One rank of a training run: `torchrun --nproc-per-node 4 -m abs_sgd PROFILE -a abs-sgd -o DIR`."""

from __future__ import annotations

import sys

from abs_sgd.train import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
