"""A capsule layer inside another CNN: convolutions see the image, capsules route their features to the classes.

python examples/caps_in_a_cnn.py
"""

import torch
from torch import nn

from emcaps.nn import ClassCaps, ConvCaps, PrimaryCaps, spread_loss

CLASSES = 3

backbone = nn.Sequential(  # any network that ends in a feature map (B, channels, H, W)
    nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
)  # fmt: skip
head = nn.Sequential(PrimaryCaps(32, types=8), ConvCaps(8, 8, kernel=3, stride=2), ClassCaps(8, CLASSES))
network = nn.Sequential(backbone, head)


def striped_images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy stripes that lie across, upright or diagonally: that is their class."""
    rows, columns = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    waves = torch.stack([rows, columns, (rows + columns) / 2**0.5]).sin()
    labels = torch.randint(CLASSES, (count,))
    return waves[labels][:, None] + 0.3 * torch.randn(count, 1, 20, 20), labels


torch.manual_seed(0)
optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(40):
    images, labels = striped_images(32)
    loss = spread_loss(network(images).activation, labels, margin=0.5)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
images, labels = striped_images(200)
accuracy = (network.eval()(images).activation.argmax(-1) == labels).float().mean()
print(f"accuracy on new images: {accuracy:.0%}")
