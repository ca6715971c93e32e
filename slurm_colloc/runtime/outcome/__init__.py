"""How a member ended, what that means for its neighbours, and whom that is told."""
