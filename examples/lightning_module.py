"""A capsule network trained by Lightning, on random stripes. It needs `pip install lightning`.

python examples/lightning_module.py
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from emcaps.config import preset
from emcaps.nn import MatrixCapsNet, spread_loss


class Capsules(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = MatrixCapsNet(preset("tiny").network)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        images, labels = batch
        activation = self.network(images).activation
        self.log("accuracy", (activation.argmax(-1) == labels).float().mean(), prog_bar=True)
        return spread_loss(activation, labels, margin=0.5)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


lightning.seed_everything(0)
labels = torch.randint(5, (320,))
waves = torch.sin(torch.arange(16) * (0.3 + 0.5 * labels[:, None]))  # a class is a width of stripes
images = waves[:, None, None, :] + 0.3 * torch.randn(320, 1, 16, 16)
trainer = lightning.Trainer(max_epochs=10, accelerator="auto", logger=False, enable_checkpointing=False)
trainer.fit(Capsules(), DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True))
print(f"accuracy of the last step: {trainer.callback_metrics['accuracy']:.0%}")
