"""States, ends, reasons to wait and summaries in words; what `csub explain` knows; pure."""
