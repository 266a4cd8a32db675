"""A plain PyTorch loop on MNIST: raw images, the default network, Adam and the spread loss.

    emcaps data get mnist    # downloads the files to ~/.cache/emcaps/mnist-originals, or $EMCAPS_DATA/mnist-originals
    python examples/mnist_loop.py FOLDER [STEPS]    # FOLDER holds train-images-idx3-ubyte.gz and the other three files

After 200 steps over 90 % of 1,000 test images are right; on two CPU cores that takes a minute or two.
"""

import gzip
import sys
from pathlib import Path

import torch

from emcaps.config import NetworkConfig
from emcaps.nn import MatrixCapsNet, spread_loss


def read(kind: str, header: int) -> torch.Tensor:
    content = gzip.decompress((folder / f"{kind}-ubyte.gz").read_bytes())  # the first few bytes give its sizes
    return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8)


folder = Path(sys.argv[1] if len(sys.argv) > 1 else sys.exit(__doc__))
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
images, labels = read("train-images-idx3", 16).view(-1, 1, 28, 28), read("train-labels-idx1", 8).long()
torch.manual_seed(0)
network = MatrixCapsNet(NetworkConfig(classes=10))
optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(steps):
    batch = torch.randint(len(images), (64,))
    loss = spread_loss(network(images[batch]).activation, labels[batch], margin=0.2)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
images, labels = read("t10k-images-idx3", 16).view(-1, 1, 28, 28)[:1000], read("t10k-labels-idx1", 8)[:1000]
with torch.no_grad():
    answers = torch.cat([network(part).activation.argmax(-1) for part in images.split(100)])
print(f"accuracy after {steps} steps: {(answers == labels).double().mean():.3f}")
