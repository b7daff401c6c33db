"""Gradient matching, the method of the paper: find the layers of a policy from gradients alone.

To read it from the top: `search` runs steps and layers; a step draws a `minibatch`, takes `rewards`
(through `graphs` on CUDA) and moves the distribution of a `layer`. Below lie `gradients`, whose
inner products come from `forward_mode`. `check_model` and `fold_batchnorm` prepare the network.
"""
