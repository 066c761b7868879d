"""A process ends as its script does: nothing of ours or of torch's keeps the group, and with it gloo's threads, beyond its destruction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

LOOP = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
from abs_sgd import AbsSgd, OpenBatchSampler

def main():
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
    model = torch.nn.Linear(2, 1)
    sampler = OpenBatchSampler(8, batch_size=4)
    trainer = AbsSgd(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sampler=sampler)
    for numbers in sampler:
        model(torch.ones(len(numbers), 2)).sum().backward()
        trainer.step(len(numbers))
    trainer.finish()
    dist.all_reduce(torch.zeros(1))
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    dist.destroy_process_group()
    left = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    print(sum(name.startswith("pt_gloo") for name in threads), sum(name.startswith("pt_gloo") for name in left))

main()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are named in Linux's /proc")
def test_gloos_threads_end_with_the_group_while_a_trainer_is_still_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOOP, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 0 and after == 0
