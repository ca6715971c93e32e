"""The kernel's side: processes, groups, directories, and the one place that signals."""
