"""What is needed of Lightning."""

from __future__ import annotations

from evenstep.integrations.releases import check_hooks, check_release, importing

with importing("lightning", "lightning"):
    from lightning.fabric import Fabric as Fabric
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import LightningModule as LightningModule
    from lightning.pytorch import Trainer as Trainer

check_release("lightning")
check_hooks("lightning", Callback, "on_before_backward", "on_before_optimizer_step")
check_hooks("lightning", Fabric, "to_device")
