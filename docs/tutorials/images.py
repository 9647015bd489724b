# %% [markdown]
# # Images
#
# A classifier looks at noisy copies of an image and discards those that it is unsure about. How far may the image be changed before its
# answer changes? The usual formula is wrong here, because it forgets the discarded copies. CCFS counts them.
#
# To have no download in this tutorial, the network is a made-up one with a known boundary: label 0 where the first pixel exceeds one half.

# %%
import torch
from torch import nn

from ccfs.images import ConfidenceFilter, FilteredSmoother, NoFilter

torch.set_num_threads(1)


class Halfspace(nn.Module):
    def forward(self, images):
        score = 1.5 * (images[:, 0, 0, 0] - 0.5)
        return torch.stack([score, -score], 1)


image = torch.full((1, 3, 3), 0.5)
image[0, 0, 0] = 1.0  # half a unit away from the boundary

# %%
for name, kept in (("no filter", NoFilter()), ("sure of 0.9", ConfidenceFilter(0.9))):
    smoother = FilteredSmoother(Halfspace().eval(), 0.5, kept, 2)
    print(f"{name}: {smoother.certify(image.numpy(), 100, 5_000, 0.001, 1_000)}")

# %% [markdown]
# Both radii are below 0.5, which is the true distance to the boundary. [The page about images](../images.md) goes on to real networks and data
# sets, from Python and with `ccfs image`.
