"""What csub learns from a pack that has run: usage profiles and feedback; the report only reads."""
