// Carries the precompiled headers of the rooms without LibTorch.
