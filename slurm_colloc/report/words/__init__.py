"""What `csub explain` knows: states, ends, reasons to wait, and the words of a report; pure."""
