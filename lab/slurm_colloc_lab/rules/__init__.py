"""Rules of others for who shares a GPU, to compare csub's own search with."""
