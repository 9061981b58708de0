"""How taps of the target become a drafter's context features.  Knows widths; knows no position and no block."""

from __future__ import annotations

from torch import Tensor, nn

from methods.config import DrafterConfig


class SharedFC(nn.Module):
    """One projection of the concatenated taps, shared by all draft layers (DFlash; DFlow equation 1).

    ``context = RMSNorm(W_fc [h_1; ...; h_K])``, no bias, no further norm before the draft layers' K and V.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(len(config.taps) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def project(self, taps: Tensor) -> Tensor:  # [..., F] -> [..., H]
        """Before the norm: a relay gathers rows of it and norms them itself, with `hidden_norm`."""
        return self.fc(taps.to(self.fc.weight.dtype))

    def forward(self, taps: Tensor) -> Tensor:  # [..., F] -> [..., H]
        return self.hidden_norm(self.project(taps))


FUSIONS: dict[str, type[nn.Module]] = {"shared_fc": SharedFC}
