"""From a command line to a submission, a plan or a check; the work is submission's."""
