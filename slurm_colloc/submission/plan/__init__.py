"""From jobs to a plan: what is known of them, and where they may land."""
