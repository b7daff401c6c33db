"""Gradient matching, the method of the paper: find the layers of a policy from gradients alone.

To read it from the top: `search` runs steps and layers; a step takes `rewards` of a minibatch and
moves the distribution of a `layer`. Below lie `gradients`, whose inner products come from
`forward_mode`.
"""
