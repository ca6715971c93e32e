"""Everything that measures csub and judges nothing; what can fail is in tests."""
