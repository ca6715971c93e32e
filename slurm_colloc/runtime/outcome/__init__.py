"""How a member ended, what that means for its neighbours, and who is told."""
