"""What prolog and epilog do for a job, as root; the daemon itself is host.mps."""
