"""What `csub plan` shows; nothing here chooses."""
