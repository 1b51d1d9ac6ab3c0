"""The parts of ddprun.checkpoint: names and manifests, the directory, what a file holds, the ranks.

The order of imports is names, directory, state and ranks. Nothing here is public.
"""
