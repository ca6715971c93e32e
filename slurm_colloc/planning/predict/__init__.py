"""What a pack would cost and how fast its members would be; choosing among packs is search."""
